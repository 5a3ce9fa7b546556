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
#include "graph/onnx_scope.h"

enum {
    MAX_VALUES = 1 << 20,
    MAX_NODES = 1 << 20,
    MAX_ATTRS = 256,
    MAX_CALLS = 1 << 16, /* of functions: each may call others twice over */
    MAX_SCOPES = 32,
    OLDEST_OPSET = 7,
    NEWEST_OPSET = 23,
};

typedef struct NameSlot {
    int value; /* index + 1, 0: free */
} NameSlot;

typedef struct Import {
    Diag *d;
    Model *m;
    const ModelOptions *options;
    Wire graph;
    bool has_graph;
    NameSlot *slot; /* open addressing by the name's hash; a power of two, at most half full */
    size_t n_slot;
    VEC(const char **) in_name;          /* by node: names of its inputs */
    VEC(const char *) condition;         /* by guard: name of its condition */
    VEC(Onnx__FunctionProto *) function; /* that the model defines */
    VEC(WireField) function_wire;        /* the same in the file */
    int calls;                           /* of functions, and branches */
    int unsupported;                     /* nodes */
    Text unsupported_ops;
} Import;

static Status fail(Import *im, const char *format, ...) __attribute__((format(printf, 2, 3)));
static Status fail(Import *im, const char *format, ...)
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

static int value_find(Import *im, const char *name)
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
            return fail(im, "%s: its name is not valid UTF-8 (byte 0x%02x)", what, (unsigned)code);
        name += bytes;
        left -= (size_t)bytes;
    }
    return ST_OK;
}

/* A new value; its name (copied) must be new as well. */
static Status value_add(Import *im, const char *name, ValueKind kind, const char *definer, int *out)
{
    *out = -1;
    if (!name || !name[0])
        return fail(im, "%s without a name", definer);
    TRY(check_utf8(im, definer, name));
    if ((size_t)im->m->value.count * 2 >= im->n_slot)
        TRY(slots_grow(im));
    if (slot_find(im, name)->value)
        return fail(im, "%s \"%.300s\": a value of this name is defined twice", definer, name);
    if (im->m->value.count >= MAX_VALUES)
        return fail(im, "more than %d values", (int)MAX_VALUES);
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

static Status import_initializer(Import *im, const WireField *f, const Scope *scope)
{
    Value t = {.kind = VALUE_INITIALIZER, .producer = -1};
    int index;
    TRY(tensor_decode(im->d, im->m, "initializer", f->at, f->size, im->options->allow_missing_data, &t));
    const char *name = t.name ? scope_name(im->m->arena, scope, t.name) : "";
    if (!name)
        return diag_oom(im->d);
    TRY(value_add(im, name, VALUE_INITIALIZER, "initializer", &index));
    t.name = im->m->value.at[index].name;
    im->m->value.at[index] = t;
    return ST_OK;
}

static Status input_type(Import *im, const Onnx__ValueInfoProto *info, Value *v)
{
    const Onnx__TensorTypeProto *t = info->type ? info->type->tensor_type : NULL;
    if (!t)
        return fail(im, "input \"%.300s\" is not a tensor", info->name);
    if (!dtype_from_onnx(t->elem_type, &v->dtype))
        return fail(im, "input \"%.300s\": element type %s (%d) is not supported", info->name,
                    onnx_dtype_name(t->elem_type), (int)t->elem_type);
    if (!t->shape)
        return ST_OK;
    if (t->shape->n_dim > MAX_RANK)
        return fail(im, "input \"%.300s\" has %zu dimensions; at most %d are supported", info->name, t->shape->n_dim,
                    (int)MAX_RANK);
    v->rank = (int)t->shape->n_dim;
    for (int i = 0; i < v->rank; i++) {
        const Onnx__DimensionProto *dim = t->shape->dim[i];
        if (dim->dim_param && dim->dim_param[0]) {
            if (!(v->dim_name[i] = arena_strdup(im->m->arena, dim->dim_param)))
                return diag_oom(im->d);
        } else if (dim->has_dim_value) {
            if (dim->dim_value < 0)
                return fail(im, "input \"%.300s\": dimension %d is %lld", info->name, i, (long long)dim->dim_value);
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

/* ---- nodes -------------------------------------------------------------------------------------- */

static AttrKind attr_kind(const Onnx__AttributeProto *p)
{
    static const AttrKind kind[] = {ATTR_OTHER,  ATTR_FLOAT, ATTR_INT,    ATTR_STRING,
                                    ATTR_TENSOR, ATTR_GRAPH, ATTR_FLOATS, ATTR_INTS};
    if (p->has_type && p->type != 0)
        return p->type > 0 && p->type < (int)(sizeof kind / sizeof kind[0]) ? kind[p->type] : ATTR_OTHER;
    /* files of the first versions do not say the type */
    return p->has_i      ? ATTR_INT
           : p->has_f    ? ATTR_FLOAT
           : p->n_ints   ? ATTR_INTS
           : p->n_floats ? ATTR_FLOATS
           : p->has_s    ? ATTR_STRING
           : p->t        ? ATTR_TENSOR
           : p->g        ? ATTR_GRAPH
                         : ATTR_OTHER;
}

/* `wire` is the attribute as it lies in the file: a tensor is decoded from there. */
static Status import_attr(Import *im, const ModelNode *n, const Onnx__AttributeProto *p, const WireField *wire,
                          Attr *out)
{
    Arena *arena = im->m->arena;
    out->name = arena_strdup(arena, p->name ? p->name : "");
    out->kind = attr_kind(p);
    out->i = p->i;
    out->f = (double)p->f;
    if (!out->name)
        return diag_oom(im->d);
    if (out->kind == ATTR_INTS) {
        int64_t *ints = ARENA_NEW(arena, int64_t, p->n_ints);
        if (!ints)
            return diag_oom(im->d);
        if (p->n_ints)
            memcpy(ints, p->ints, p->n_ints * sizeof *ints);
        out->ints = ints;
        out->count = (int)p->n_ints;
    } else if (out->kind == ATTR_FLOATS) {
        double *floats = ARENA_NEW(arena, double, p->n_floats);
        if (!floats)
            return diag_oom(im->d);
        for (size_t i = 0; i < p->n_floats; i++)
            floats[i] = (double)p->floats[i];
        out->floats = floats;
        out->count = (int)p->n_floats;
    } else if (out->kind == ATTR_STRING) {
        char *s = arena_alloc(arena, p->s.len + 1, 1);
        if (!s)
            return diag_oom(im->d);
        if (p->s.len)
            memcpy(s, p->s.data, p->s.len);
        out->s = s;
        out->count = (int)p->s.len;
    } else if (out->kind == ATTR_TENSOR) {
        char where[500];
        snprintf(where, sizeof where, "node \"%.300s\", attribute %.100s", n->name, out->name);
        WireField f;
        for (Wire w = {wire->at, wire->at + wire->size, NULL}; wire_next(&w, &f);)
            if (f.number == 5) {
                out->tensor = (Value){.kind = VALUE_CONSTANT, .producer = -1};
                return tensor_decode(im->d, im->m, where, f.at, f.size, false, &out->tensor);
            }
        return fail(im, "%s: the tensor is missing", where);
    }
    return ST_OK;
}

/* In a function's body an attribute may stand for one of the call, which may leave it out. */
static Status import_or_refer(Import *im, const ModelNode *n, const Onnx__AttributeProto *p, const WireField *wire,
                              const Scope *scope, Attr *out, bool *found)
{
    *found = true;
    if (!p->ref_attr_name || !p->ref_attr_name[0])
        return import_attr(im, n, p, wire, out);
    const Attr *given = scope_attr(scope, p->ref_attr_name);
    *found = given != NULL;
    if (!given)
        return ST_OK;
    *out = *given;
    out->name = arena_strdup(im->m->arena, p->name ? p->name : "");
    return out->name ? ST_OK : diag_oom(im->d);
}

/* The attributes in field `number` of a message, added to those that n has; `more` is room for as many. A second one of a
 * name is an error, or with defaults ignored. */
static Status import_attrs(Import *im, ModelNode *n, Onnx__AttributeProto *const *p, size_t count, const WireField *message,
                           uint32_t number, const Scope *scope, bool defaults)
{
    if (count > MAX_ATTRS)
        return fail(im, "node \"%.300s\" has %zu attributes", n->name, count);
    Attr *attr = ARENA_NEW(im->m->arena, Attr, (size_t)n->n_attr + count);
    if (!attr)
        return diag_oom(im->d);
    if (n->n_attr)
        memcpy(attr, n->attr, (size_t)n->n_attr * sizeof *attr);
    n->attr = attr;
    WireField f;
    size_t next = 0;
    for (Wire w = {message->at, message->at + message->size, NULL}; next < count && wire_next(&w, &f);) {
        if (f.number != number)
            continue;
        Attr *a = &n->attr[n->n_attr];
        bool found;
        TRY(import_or_refer(im, n, p[next++], &f, scope, a, &found));
        if (found && node_attr(n, a->name) && !defaults)
            return fail(im, "node \"%.300s\" has two attributes %.100s", n->name, a->name);
        n->n_attr += found && !node_attr(n, a->name);
    }
    return ST_OK;
}

/* Unsupported operators are counted and named together, after the first one has made the error. */
static void note_unsupported(Import *im, const ModelNode *n)
{
    const char *separator = n->domain[0] ? "." : "";
    if (im->unsupported++ == 0) {
        int count;
        const OpRow *row = op_rows(&count);
        bool other_opset = false;
        for (int i = 0; i < count && !n->domain[0]; i++)
            other_opset = other_opset || strcmp(row[i].op, n->op) == 0;
        fail(im, "node \"%.300s\": operator %.100s%s%.100s (opset %lld) is not supported%s", n->name, n->domain,
             separator, n->op, (long long)im->m->opset, other_opset ? " at this opset" : "");
    }
    /* a name is listed once; the text is short, so that searching it is enough */
    char item[256];
    snprintf(item, sizeof item, " %.100s%s%.100s,", n->domain, separator, n->op);
    if (im->unsupported_ops.size < 1000 && !(im->unsupported_ops.at && strstr(im->unsupported_ops.at, item)))
        text_add(&im->unsupported_ops, "%s", item);
}

static Status import_nodes(Import *im, Wire body, uint32_t number, const Scope *scope);

/* A name in the scope, copied. */
static Status copy_name(Import *im, const Scope *scope, const char *name, const char **out)
{
    const char *flat = scope_name(im->m->arena, scope, name);
    *out = flat == name ? arena_strdup(im->m->arena, name) : flat;
    return *out ? ST_OK : diag_oom(im->d);
}

/* The node with its outputs, which become values. in_name: n->n_in names, copied. */
static Status add_node(Import *im, ModelNode n, const char **in_name, const char *const *out_name)
{
    Model *m = im->m;
    if (m->node.count >= MAX_NODES)
        return fail(im, "more than %d nodes", (int)MAX_NODES);
    for (int i = 0; i < n.n_out; i++) {
        n.out[i] = -1;
        if (out_name[i][0] == '\0')
            continue;
        char definer[400];
        snprintf(definer, sizeof definer, "node \"%.300s\", output", n.name);
        int index;
        Status status = value_add(im, out_name[i], VALUE_COMPUTED, definer, &index);
        if (status != ST_OK && !im->unsupported)
            return status;
        if (index < 0)
            return im->d->status;
        n.out[i] = index;
        m->value.at[index].producer = m->node.count;
    }
    const char ***name_slot = VEC_PUSH(&im->in_name);
    ModelNode *slot = name_slot ? VEC_PUSH(&m->node) : NULL;
    if (!slot)
        return diag_oom(im->d);
    *name_slot = in_name;
    *slot = n;
    return ST_OK;
}

/* "NAME/", or "NAME.7/" where another call of the name has defined one of these values already. */
static Status choose_prefix(Import *im, const ModelNode *n, const char *const *local, int count, Scope *s)
{
    s->prefix = arena_printf(im->m->arena, "%s/", n->name);
    for (int i = 0; i < count && s->prefix; i++) {
        const char *name = arena_printf(im->m->arena, "%s%s", s->prefix, local[i]);
        if (!name)
            return diag_oom(im->d);
        if (value_find(im, name) >= 0) {
            s->prefix = arena_printf(im->m->arena, "%s.%d/", n->name, im->calls);
            break;
        }
    }
    return s->prefix ? ST_OK : diag_oom(im->d);
}

static Status enter(Import *im, const ModelNode *n, const Scope *outer, Scope *s)
{
    s->depth = outer ? outer->depth + 1 : 1;
    if (s->depth > MAX_SCOPES)
        return fail(im, "node \"%.300s\": functions and branches are nested more than %d deep", n->name,
                    (int)MAX_SCOPES);
    if (im->calls++ >= MAX_CALLS)
        return fail(im, "node \"%.300s\": functions are called more than %d times", n->name, (int)MAX_CALLS);
    return ST_OK;
}

/* ---- functions ---------------------------------------------------------------------------------- */

static int find_function(const Import *im, const Onnx__NodeProto *p, const char *domain)
{
    const char *overload = p->overload ? p->overload : "";
    for (int i = 0; i < im->function.count; i++) {
        const Onnx__FunctionProto *f = im->function.at[i];
        const char *theirs = f->domain && strcmp(f->domain, "ai.onnx") != 0 ? f->domain : "";
        if (f->name && strcmp(f->name, p->op_type) == 0 && strcmp(theirs, domain) == 0 &&
            strcmp(f->overload ? f->overload : "", overload) == 0)
            return i;
    }
    return -1;
}

/* A function's operators have to mean what they mean in the model: one opset for both. */
static Status check_opset(Import *im, const ModelNode *n, const Onnx__FunctionProto *f)
{
    for (size_t i = 0; i < f->n_opset_import; i++) {
        const Onnx__OperatorSetIdProto *o = f->opset_import[i];
        bool standard = !o->domain || !o->domain[0] || strcmp(o->domain, "ai.onnx") == 0;
        if (standard && o->version != im->m->opset)
            return fail(im, "node \"%.300s\": the function %.100s is written in opset %lld, the model in opset %lld", n->name,
                        n->op, (long long)o->version, (long long)im->m->opset);
    }
    return ST_OK;
}

/* Parameters and results of the call. A result that is a parameter gets a node of its own, since one name cannot be both. */
static Status bind_call(Import *im, const ModelNode *n, const Onnx__FunctionProto *f, const char *const *in,
                        const char *const *out, Scope *s)
{
    size_t most = f->n_input + f->n_output;
    s->formal = ARENA_NEW(im->m->arena, const char *, most);
    s->actual = ARENA_NEW(im->m->arena, const char *, most);
    if (!s->formal || !s->actual)
        return diag_oom(im->d);
    if ((size_t)n->n_in > f->n_input || (size_t)n->n_out > f->n_output)
        return fail(im, "node \"%.300s\": has %d inputs and %d outputs, the function %.100s has %zu and %zu", n->name, n->n_in,
                    n->n_out, n->op, f->n_input, f->n_output);
    for (size_t i = 0; i < most; i++) {
        bool result = i >= f->n_input;
        size_t k = result ? i - f->n_input : i;
        const char *formal = result ? f->output[k] : f->input[k];
        const char *actual = result ? (k < (size_t)n->n_out ? out[k] : "") : k < (size_t)n->n_in ? in[k] : "";
        bool twice = false;
        for (int b = 0; b < s->n_bound; b++)
            twice = twice || strcmp(s->formal[b], formal) == 0;
        if (result && (twice || !actual[0])) /* what nobody asked for is a value of the body like others */
            continue;
        s->formal[s->n_bound] = formal;
        s->actual[s->n_bound++] = actual;
    }
    return ST_OK;
}

/* A result that is a parameter is computed by no node of the body. */
static Status pass_parameters(Import *im, const ModelNode *n, const Onnx__FunctionProto *f, const char *const *in,
                              const char *const *out)
{
    for (int k = 0; k < n->n_out; k++)
        for (int i = 0; i < n->n_in && out[k][0]; i++) {
            if (strcmp(f->output[k], f->input[i]) != 0)
                continue;
            ModelNode same = {.name = n->name, .op = "Identity", .domain = "", .n_in = 1, .n_out = 1, .guard = n->guard};
            const char **name = ARENA_NEW(im->m->arena, const char *, 1);
            same.row = op_find("", same.op, im->m->opset);
            same.in = ARENA_NEW(im->m->arena, int, 1);
            same.out = ARENA_NEW(im->m->arena, int, 1);
            if (!same.in || !same.out || !name)
                return diag_oom(im->d);
            *name = in[i];
            TRY(add_node(im, same, name, &out[k]));
            break;
        }
    return ST_OK;
}

/* The nodes of the body in place of the call, which itself is no node of the graph. */
static Status call_function(Import *im, ModelNode *n, int function, const Onnx__NodeProto *p, const WireField *wire,
                            const char *const *in, const char *const *out, const Scope *outer)
{
    const Onnx__FunctionProto *f = im->function.at[function];
    const WireField *body = &im->function_wire.at[function];
    Scope s = {.function = true, .guard = n->guard};
    TRY(enter(im, n, outer, &s));
    TRY(check_opset(im, n, f));
    TRY(import_attrs(im, n, p->attribute, p->n_attribute, wire, 5, outer, false));
    for (size_t i = 0; i < f->n_attribute; i++)
        if (!node_attr(n, f->attribute[i]))
            return fail(im, "node \"%.300s\": the function %.100s needs the attribute %.100s", n->name, n->op,
                        f->attribute[i]);
    TRY(import_attrs(im, n, f->attribute_proto, f->n_attribute_proto, body, 11, NULL, true));
    s.attr = n->attr;
    s.n_attr = n->n_attr;
    TRY(bind_call(im, n, f, in, out, &s));
    int count = 0;
    for (size_t i = 0; i < f->n_node; i++)
        count += (int)f->node[i]->n_output;
    const char **local = ARENA_NEW(im->m->arena, const char *, count);
    if (!local)
        return diag_oom(im->d);
    count = 0;
    for (size_t i = 0; i < f->n_node; i++)
        for (size_t k = 0; k < f->node[i]->n_output; k++)
            local[count++] = f->node[i]->output[k];
    TRY(choose_prefix(im, n, local, count, &s));
    TRY(pass_parameters(im, n, f, in, out));
    return import_nodes(im, (Wire){body->at, body->at + body->size, NULL}, 7, &s);
}

/* ---- branches ----------------------------------------------------------------------------------- */

/* One branch of an If: its nodes under a guard, and the names of its results. */
static Status import_branch(Import *im, const ModelNode *n, Wire graph, bool taken, const char *condition, const Scope *outer,
                            const char **results)
{
    Scope s = {.outer = outer};
    TRY(enter(im, n, outer, &s));
    Guard *guard = VEC_PUSH(&im->m->guard);
    const char **slot = guard ? VEC_PUSH(&im->condition) : NULL;
    if (!slot)
        return diag_oom(im->d);
    *slot = condition;
    *guard = (Guard){-1, n->guard, taken};
    s.guard = im->m->guard.count - 1;
    TRY(scope_read_locals(im->d, im->m->arena, graph, &s));
    TRY(choose_prefix(im, n, s.local, s.n_local, &s));
    int count = 0;
    WireField f;
    for (Wire w = graph; wire_next(&w, &f);) {
        if (f.number == 15)
            return fail(im, "sparse initializers are not supported");
        if (f.number == 5)
            TRY(import_initializer(im, &f, &s));
        if (f.number != 12)
            continue;
        Onnx__ValueInfoProto *info = (Onnx__ValueInfoProto *)unpack(&onnx__value_info_proto__descriptor, f.at, f.size);
        Status status = info ? ST_OK : diag_oom(im->d);
        if (status == ST_OK && count < n->n_out)
            status = copy_name(im, &s, info->name ? info->name : "", &results[count]);
        count++;
        if (info)
            unpack_free(&info->base);
        TRY(status);
    }
    if (count != n->n_out)
        return fail(im, "node \"%.300s\": a branch has %d results, the node %d", n->name, count, n->n_out);
    return import_nodes(im, graph, 1, &s);
}

/* The condition, then the results of one branch and of the other. The node picks once the condition is known: infer_if. */
static Status import_branches(Import *im, ModelNode *n, const Onnx__NodeProto *p, const WireField *wire, const char ***in_name,
                              const Scope *outer)
{
    const char **name = ARENA_NEW(im->m->arena, const char *, 1 + 2 * n->n_out);
    int seen = 0;
    size_t next = 0;
    WireField f, g;
    n->in = ARENA_NEW(im->m->arena, int, 1 + 2 * n->n_out);
    if (!name || !n->in)
        return diag_oom(im->d);
    if (n->n_in != 1 || !(*in_name)[0][0])
        return fail(im, "node \"%.300s\": has no condition", n->name);
    name[0] = (*in_name)[0];
    for (Wire w = {wire->at, wire->at + wire->size, NULL}; next < p->n_attribute && wire_next(&w, &f);) {
        if (f.number != 5)
            continue;
        const char *which = p->attribute[next]->name ? p->attribute[next]->name : "";
        next++;
        bool then = strcmp(which, "then_branch") == 0;
        if (!then && strcmp(which, "else_branch") != 0)
            continue;
        for (Wire a = {f.at, f.at + f.size, NULL}; wire_next(&a, &g);)
            if (g.number == 6 && !(seen & (then ? 1 : 2))) {
                seen |= then ? 1 : 2;
                TRY(import_branch(im, n, (Wire){g.at, g.at + g.size, NULL}, then, name[0], outer,
                                  name + 1 + (then ? 0 : n->n_out)));
            }
    }
    if (seen != 3)
        return fail(im, "node \"%.300s\": a branch is missing", n->name);
    n->n_in = 1 + 2 * n->n_out;
    *in_name = name;
    return ST_OK;
}

/* ---- one node ----------------------------------------------------------------------------------- */

static Status import_node_from(Import *im, const Onnx__NodeProto *p, const WireField *f, const Scope *scope)
{
    Model *m = im->m;
    if (!p->op_type || !p->op_type[0])
        return fail(im, "node %d has no operator", m->node.count);
    ModelNode n = {.n_in = (int)p->n_input, .n_out = (int)p->n_output, .guard = scope ? scope->guard : -1};
    bool standard = !p->domain || strcmp(p->domain, "ai.onnx") == 0;
    const char *prefix = scope ? scope->prefix : "";
    n.op = arena_strdup(m->arena, p->op_type);
    n.domain = standard ? "" : arena_strdup(m->arena, p->domain);
    n.name = p->name && p->name[0] ? arena_printf(m->arena, "%s%s", prefix, p->name)
                                   : arena_printf(m->arena, "%s%.200s_%d", prefix, p->op_type, m->node.count);
    n.in = ARENA_NEW(m->arena, int, n.n_in);
    n.out = ARENA_NEW(m->arena, int, n.n_out);
    const char **in_name = ARENA_NEW(m->arena, const char *, n.n_in);
    const char **out_name = ARENA_NEW(m->arena, const char *, n.n_out);
    if (!n.op || !n.domain || !n.name || !n.in || !n.out || !in_name || !out_name)
        return diag_oom(im->d);
    for (int i = 0; i < n.n_in; i++)
        TRY(copy_name(im, scope, p->input[i], &in_name[i]));
    for (int i = 0; i < n.n_out; i++)
        TRY(copy_name(im, scope, p->output[i], &out_name[i]));
    int function = find_function(im, p, n.domain);
    if (function >= 0)
        return call_function(im, &n, function, p, f, in_name, out_name, scope);
    n.row = op_find(n.domain, n.op, m->opset);
    if (!n.row)
        note_unsupported(im, &n);
    else if (strcmp(n.op, "If") == 0)
        TRY(import_branches(im, &n, p, f, &in_name, scope));
    else
        TRY(import_attrs(im, &n, p->attribute, p->n_attribute, f, 5, scope, false));
    return add_node(im, n, in_name, out_name);
}

static Status import_node(Import *im, const WireField *f, const Scope *scope)
{
    Onnx__NodeProto *p = (Onnx__NodeProto *)unpack(&onnx__node_proto__descriptor, f->at, f->size);
    if (!p)
        return diag_oom(im->d);
    Status status = import_node_from(im, p, f, scope);
    unpack_free(&p->base);
    return status;
}

static Status import_nodes(Import *im, Wire body, uint32_t number, const Scope *scope)
{
    WireField f;
    for (Wire w = body; wire_next(&w, &f);)
        if (f.number == number)
            TRY(import_node(im, &f, scope));
    return ST_OK;
}

static Status resolve_inputs(Import *im)
{
    for (int i = 0; i < im->condition.count; i++)
        if ((im->m->guard.at[i].condition = value_find(im, im->condition.at[i])) < 0)
            return fail(im, "the condition \"%.300s\" is not an input, an initializer or the output of a node",
                        im->condition.at[i]);
    for (int i = 0; i < im->m->node.count; i++) {
        ModelNode *n = &im->m->node.at[i];
        for (int k = 0; k < n->n_in; k++) {
            const char *name = im->in_name.at[i][k];
            n->in[k] = name[0] ? value_find(im, name) : -1;
            if (name[0] && n->in[k] < 0)
                return fail(
                    im, "node \"%.300s\": its input \"%.300s\" is not an input, an initializer or the output of a node",
                    n->name, name);
        }
    }
    return ST_OK;
}

/* What node n waits for: value k of its inputs (-1: omitted), then the conditions around it. False when there are no more. */
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
                status = fail(im, "node \"%.300s\" depends on its own output: the graph has a cycle", n->name);
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
            status = fail(im, "%s \"%.300s\" is not defined by any node, input or initializer", what,
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
            return fail(im, "sparse initializers are not supported");
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
    TRY(import_infos(im, 12, "output", &im->m->output, &im->m->n_output));
    return im->m->n_output ? ST_OK : fail(im, "the graph has no output");
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
        status = fail(im, "the opset of the standard operators is given twice: %lld and %lld", (long long)im->m->opset,
                      (long long)p->version);
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
        return fail(im, "not an ONNX model: it has no graph");
    if (!im->m->opset)
        return fail(im, "the opset of the standard operators is not given");
    if (im->m->opset < OLDEST_OPSET || im->m->opset > NEWEST_OPSET) {
        fail(im, "opset %lld is not supported: %d to %d are", (long long)im->m->opset, (int)OLDEST_OPSET,
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
