/* onnx_import.c - an ONNX file to a Model.
 *
 * needs: nothing           fills: values (inputs, initializers, node outputs), nodes in topological order
 * keeps: the file's order where it is topological already     spoils: nothing
 *
 * The graph is walked on the wire: first everything that defines a value, since an input may name a node that comes
 * later in the file, then the names that nodes read are looked up and the nodes sorted. */
#include <string.h>
#include <xxhash.h>

#include "base/utf8.h"
#include "graph/onnx_import.h"

Status import_fail(Import *im, const char *format, ...)
{
    char text[1500];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return diag_fail(im->d, ST_MODEL, "%s: %s", im->m->path, text);
}

/* ---- values by name ----------------------------------------------------------------------------- */

static NameSlot *slot_find(Import *im, const char *name)
{
    size_t at = (size_t)XXH3_64bits(name, strlen(name)) & (im->n_slot - 1);
    while (im->slot[at].value && strcmp(im->m->value.at[im->slot[at].value - 1].name, name) != 0)
        at = (at + 1) & (im->n_slot - 1);
    return &im->slot[at];
}

int value_find(Import *im, const char *name)
{
    return im->n_slot ? slot_find(im, name)->value - 1 : -1;
}

static Status slots_grow(Import *im)
{
    size_t n = im->n_slot ? 2 * im->n_slot : 1024;
    NameSlot *slot = base_alloc(n * sizeof *slot);
    if (!slot)
        return diag_oom(im->d);
    base_free(im->slot);
    im->slot = slot;
    im->n_slot = n;
    for (int i = 0; i < im->m->value.count; i++)
        slot_find(im, im->m->value.at[i].name)->value = i + 1;
    return ST_OK;
}

/* Names go into YAML and safetensors files, which hold UTF-8 only; so does ONNX. */
static Status check_utf8(Import *im, const char *what, const char *name)
{
    uint32_t code;
    for (size_t left = strlen(name); left > 0;) {
        int bytes = base_utf8_decode(name, left, &code);
        if (bytes == 0)
            return import_fail(im, "%s: its name is not valid UTF-8 (byte 0x%02x)", what, (unsigned)code);
        name += bytes;
        left -= (size_t)bytes;
    }
    return ST_OK;
}

/* A new value; its name (copied) must be new as well. */
Status value_add(Import *im, const char *name, ValueKind kind, const char *definer, int *out)
{
    *out = -1;
    if (!name || !name[0])
        return import_fail(im, "%s without a name", definer);
    TRY(check_utf8(im, definer, name));
    if ((size_t)im->m->value.count * 2 >= im->n_slot)
        TRY(slots_grow(im));
    if (slot_find(im, name)->value)
        return import_fail(im, "%s \"%.300s\": a value of this name is defined twice", definer, name);
    if (im->m->value.count >= MAX_VALUES)
        return import_fail(im, "more than %d values", (int)MAX_VALUES);
    char *copy = arena_strdup(im->m->arena, name);
    NameSlot *slot = slot_find(im, name);
    Value *v = copy ? VEC_PUSH(&im->m->value) : NULL;
    if (!v)
        return diag_oom(im->d);
    *v = (Value){.name = copy, .kind = kind, .rank = -1, .producer = -1};
    for (int i = 0; i < MAX_RANK; i++)
        v->dim[i] = -1;
    slot->value = im->m->value.count;
    *out = im->m->value.count - 1;
    return ST_OK;
}

Status import_initializer(Import *im, const WireField *f, const Scope *scope)
{
    Value t = {.kind = VALUE_INITIALIZER, .producer = -1};
    int index;
    TRY(tensor_decode(im->d, im->m, "initializer", f->at, f->size, im->options->allow_missing_data, &t));
    const char *name = t.name ? scope_name(im->m->arena, scope, t.name) : "";
    if (!name)
        return diag_oom(im->d);
    TRY(value_add(im, name, VALUE_INITIALIZER, "initializer", &index));
    t.name = im->m->value.at[index].name;
    t.file_at = (size_t)(f->at - im->file);
    im->m->value.at[index] = t;
    return ST_OK;
}

static Status input_type(Import *im, const Onnx__ValueInfoProto *info, Value *v)
{
    const Onnx__TensorTypeProto *t = info->type ? info->type->tensor_type : NULL;
    if (!t)
        return import_fail(im, "input \"%.300s\" is not a tensor", info->name);
    if (!dtype_from_onnx(t->elem_type, &v->dtype))
        return import_fail(im, "input \"%.300s\": element type %s (%d) is not supported", info->name,
                           onnx_dtype_name(t->elem_type), (int)t->elem_type);
    if (!t->shape)
        return ST_OK;
    if (t->shape->n_dim > MAX_RANK)
        return import_fail(im, "input \"%.300s\" has %zu dimensions; at most %d are supported", info->name,
                           t->shape->n_dim, (int)MAX_RANK);
    v->rank = (int)t->shape->n_dim;
    for (int i = 0; i < v->rank; i++) {
        const Onnx__DimensionProto *dim = t->shape->dim[i];
        if (dim->dim_param && dim->dim_param[0]) {
            if (!(v->dim_name[i] = arena_strdup(im->m->arena, dim->dim_param)))
                return diag_oom(im->d);
        } else if (dim->has_dim_value) {
            if (dim->dim_value < 0)
                return import_fail(im, "input \"%.300s\": dimension %d is %lld", info->name, i,
                                   (long long)dim->dim_value);
            v->dim[i] = dim->dim_value;
        }
    }
    return ST_OK;
}

/* Inputs and outputs are listed by VEC of indices; before IR version 4 initializers were listed as inputs too. */
static Status import_input(Import *im, const Onnx__ValueInfoProto *info, int *out)
{
    *out = info->name ? value_find(im, info->name) : -1;
    if (*out >= 0 && im->m->value.at[*out].kind == VALUE_INITIALIZER) {
        *out = -1;
        return ST_OK;
    }
    TRY(value_add(im, info->name, VALUE_INPUT, "input", out));
    return input_type(im, info, &im->m->value.at[*out]);
}

static Status resolve_inputs(Import *im)
{
    for (int i = 0; i < im->condition.count; i++)
        if ((im->m->guard.at[i].condition = value_find(im, im->condition.at[i])) < 0)
            return import_fail(im, "the condition \"%.300s\" is not an input, an initializer or the output of a node",
                               im->condition.at[i]);
    for (int i = 0; i < im->m->node.count; i++) {
        ModelNode *n = &im->m->node.at[i];
        for (int k = 0; k < n->n_in; k++) {
            const char *name = im->in_name.at[i][k];
            n->in[k] = name[0] ? value_find(im, name) : -1;
            if (name[0] && n->in[k] < 0)
                return import_fail(
                    im, "node \"%.300s\": its input \"%.300s\" is not an input, an initializer or the output of a node",
                    n->name, name);
        }
    }
    return ST_OK;
}

/* What node n waits for: value k of its inputs (-1: omitted), then the conditions around it. False when there are no
 * more. */
static bool dependency(const Model *m, const ModelNode *n, int k, int *value)
{
    int guard = n->guard;
    *value = k < n->n_in ? n->in[k] : -1;
    for (int i = n->n_in; i < k && guard >= 0; i++)
        guard = m->guard.at[guard].outer;
    if (k >= n->n_in && guard >= 0)
        *value = m->guard.at[guard].condition;
    return k < n->n_in || guard >= 0;
}

/* Depth-first from each node in the file's order: a node comes after the producers of its inputs. A file that is sorted
 * keeps its order. */
static Status sort_nodes(Import *im)
{
    typedef struct Frame {
        int node, next; /* next input to look at */
    } Frame;
    Model *m = im->m;
    int count = m->node.count, depth = 0, done = 0;
    Frame *stack = base_alloc((size_t)(count + 1) * sizeof *stack);
    int *state = base_alloc((size_t)(count + 1) * sizeof *state); /* 0 new, 1 on the stack, else place in order + 2 */
    ModelNode *sorted = base_alloc((size_t)(count + 1) * sizeof *sorted);
    Status status = stack && state && sorted ? ST_OK : diag_oom(im->d);
    for (int start = 0; start < count && status == ST_OK; start++) {
        if (state[start])
            continue;
        stack[depth++] = (Frame){start, 0};
        state[start] = 1;
        while (depth > 0 && status == ST_OK) {
            Frame *top = &stack[depth - 1];
            const ModelNode *n = &m->node.at[top->node];
            int value;
            if (!dependency(m, n, top->next++, &value)) {
                sorted[done] = *n;
                state[top->node] = 2 + done++;
                depth--;
                continue;
            }
            int producer = value >= 0 ? m->value.at[value].producer : -1;
            if (producer < 0 || state[producer] > 1)
                continue;
            if (state[producer] == 1) {
                status = import_fail(im, "node \"%.300s\" depends on its own output: the graph has a cycle", n->name);
                break;
            }
            state[producer] = 1;
            stack[depth++] = (Frame){producer, 0};
        }
    }
    if (status == ST_OK) {
        if (count)
            memcpy(m->node.at, sorted, (size_t)count * sizeof *sorted);
        for (int i = 0; i < m->value.count; i++)
            if (m->value.at[i].producer >= 0)
                m->value.at[i].producer = state[m->value.at[i].producer] - 2;
    }
    base_free(stack);
    base_free(state);
    base_free(sorted);
    return status;
}

/* ---- graph and model ---------------------------------------------------------------------------- */

static Status import_infos(Import *im, uint32_t number, const char *what, int **list, int *count)
{
    typedef VEC(int) Ints;
    Ints found = {0};
    Status status = ST_OK;
    WireField f;
    for (Wire w = im->graph; status == ST_OK && wire_next(&w, &f);) {
        if (f.number != number)
            continue;
        Onnx__ValueInfoProto *info = (Onnx__ValueInfoProto *)unpack(&onnx__value_info_proto__descriptor, f.at, f.size);
        int index = -1;
        if (!info)
            status = diag_oom(im->d);
        else if (number == 11)
            status = import_input(im, info, &index);
        else if ((index = info->name ? value_find(im, info->name) : -1) < 0)
            status = import_fail(im, "%s \"%.300s\" is not defined by any node, input or initializer", what,
                                 info->name ? info->name : "");
        if (info)
            unpack_free(&info->base);
        if (status == ST_OK && index >= 0) {
            int *slot = VEC_PUSH(&found);
            if (slot)
                *slot = index;
            else
                status = diag_oom(im->d);
        }
    }
    if (status == ST_OK) {
        *count = found.count;
        *list = ARENA_NEW(im->m->arena, int, found.count);
        if (!*list)
            status = diag_oom(im->d);
        else if (found.count)
            memcpy(*list, found.at, (size_t)found.count * sizeof **list);
    }
    VEC_FREE(&found);
    return status;
}

static Status import_graph(Import *im)
{
    WireField f;
    for (Wire w = im->graph; wire_next(&w, &f);) {
        if (f.number == 5)
            TRY(import_initializer(im, &f, NULL));
        if (f.number == 15)
            return import_fail(im, "sparse initializers are not supported");
    }
    TRY(import_infos(im, 11, "input", &im->m->input, &im->m->n_input));
    TRY(import_nodes(im, im->graph, 1, NULL));
    if (im->unsupported) {
        if (im->unsupported > 1)
            diag_hint(im->d,
                      "%d nodes have unsupported operators:%.*s; `ferryc inspect --ops` lists the supported ones",
                      im->unsupported, (int)im->unsupported_ops.size - 1, im->unsupported_ops.at);
        return diag_hint(im->d, "`ferryc inspect --ops` lists the supported operators");
    }
    TRY(resolve_inputs(im));
    TRY(sort_nodes(im));
    TRY(import_origins(im));
    TRY(import_infos(im, 12, "output", &im->m->output, &im->m->n_output));
    return im->m->n_output ? ST_OK : import_fail(im, "the graph has no output");
}

static Status import_opset(Import *im, const WireField *f)
{
    Onnx__OperatorSetIdProto *p =
        (Onnx__OperatorSetIdProto *)unpack(&onnx__operator_set_id_proto__descriptor, f->at, f->size);
    if (!p)
        return diag_oom(im->d);
    bool standard = !p->domain || !p->domain[0] || strcmp(p->domain, "ai.onnx") == 0;
    Status status = ST_OK;
    if (standard && im->m->opset && im->m->opset != p->version)
        status = import_fail(im, "the opset of the standard operators is given twice: %lld and %lld",
                             (long long)im->m->opset, (long long)p->version);
    if (standard)
        im->m->opset = p->version;
    unpack_free(&p->base);
    return status;
}

static Status import_model(Import *im, const uint8_t *bytes, size_t size)
{
    WireField f;
    for (Wire w = {bytes, bytes + size, NULL}; wire_next(&w, &f);) {
        if (f.number == 8) {
            TRY(import_opset(im, &f));
        } else if (f.number == 7) {
            im->graph = (Wire){f.at, f.at + f.size, NULL};
            im->has_graph = true;
        } else if (f.number == 25) {
            Onnx__FunctionProto *p = (Onnx__FunctionProto *)unpack(&onnx__function_proto__descriptor, f.at, f.size);
            Onnx__FunctionProto **slot = p ? VEC_PUSH(&im->function) : NULL;
            WireField *wire = slot ? VEC_PUSH(&im->function_wire) : NULL;
            if (slot)
                *slot = p;
            else if (p)
                unpack_free(&p->base);
            if (!wire)
                return diag_oom(im->d);
            *wire = f;
        }
    }
    if (!im->has_graph)
        return import_fail(im, "not an ONNX model: it has no graph");
    if (!im->m->opset)
        return import_fail(im, "the opset of the standard operators is not given");
    if (im->m->opset < OLDEST_OPSET || im->m->opset > NEWEST_OPSET) {
        import_fail(im, "opset %lld is not supported: %d to %d are", (long long)im->m->opset, (int)OLDEST_OPSET,
                    (int)NEWEST_OPSET);
        return diag_hint(im->d, "export the model again with opset_version=18");
    }
    return import_graph(im);
}

Status model_import(Diag *d, Arena *a, const ModelOptions *options, Model **out)
{
    *out = NULL;
    Model *m = ARENA_NEW(a, Model, 1);
    if (!m)
        return diag_oom(d);
    m->arena = a;
    m->path = arena_strdup(a, options->path);
    if (!m->path)
        return diag_oom(d);
    Import im = {.d = d, .m = m, .options = options};
    MappedFile file;
    Status status = model_map(d, m, m->path, NULL, &file);
    if (status == ST_OK)
        status = onnx_scan(d, m->path, file.bytes, file.size);
    if (status == ST_OK) {
        im.file = file.bytes;
        hash_hex(file.bytes, file.size, m->hash);
        status = import_model(&im, file.bytes, file.size);
    }
    base_free(im.slot);
    VEC_FREE(&im.in_name);
    for (int i = 0; i < im.function.count; i++)
        unpack_free(&im.function.at[i]->base);
    VEC_FREE(&im.function);
    VEC_FREE(&im.function_wire);
    VEC_FREE(&im.condition);
    text_free(&im.unsupported_ops);
    if (status != ST_OK)
        model_close(m);
    else
        *out = m;
    return status;
}
