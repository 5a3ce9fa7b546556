/* onnx_nodes.c - nodes and their attributes, in the main graph, a function's body or a branch. */
#include <string.h>

#include "graph/onnx_import.h"

/* ---- attributes --------------------------------------------------------------------------------- */

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
        return import_fail(im, "%s: the tensor is missing", where);
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

/* The attributes in field `number` of a message, added to those that n has; `more` is room for as many. A second one of
 * a name is an error, or with defaults ignored. */
Status import_attrs(Import *im, ModelNode *n, Onnx__AttributeProto *const *p, size_t count, const WireField *message,
                    uint32_t number, const Scope *scope, bool defaults)
{
    if (count > MAX_ATTRS)
        return import_fail(im, "node \"%.300s\" has %zu attributes", n->name, count);
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
            return import_fail(im, "node \"%.300s\" has two attributes %.100s", n->name, a->name);
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
        import_fail(im, "node \"%.300s\": operator %.100s%s%.100s (opset %lld) is not supported%s", n->name, n->domain,
                    separator, n->op, (long long)im->m->opset, other_opset ? " at this opset" : "");
    }
    /* a name is listed once; the text is short, so that searching it is enough */
    char item[256];
    snprintf(item, sizeof item, " %.100s%s%.100s,", n->domain, separator, n->op);
    if (im->unsupported_ops.size < 1000 && !(im->unsupported_ops.at && strstr(im->unsupported_ops.at, item)))
        text_add(&im->unsupported_ops, "%s", item);
}

/* A name in the scope, copied. */
Status copy_name(Import *im, const Scope *scope, const char *name, const char **out)
{
    const char *flat = scope_name(im->m->arena, scope, name);
    *out = flat == name ? arena_strdup(im->m->arena, name) : flat;
    return *out ? ST_OK : diag_oom(im->d);
}

/* The node with its outputs, which become values. in_name: n->n_in names, copied. */
Status add_node(Import *im, ModelNode n, const char **in_name, const char *const *out_name)
{
    Model *m = im->m;
    if (m->node.count >= MAX_NODES)
        return import_fail(im, "more than %d nodes", (int)MAX_NODES);
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

/* ---- one node ----------------------------------------------------------------------------------- */

static Status import_node_from(Import *im, const Onnx__NodeProto *p, const WireField *f, const Scope *scope)
{
    Model *m = im->m;
    if (!p->op_type || !p->op_type[0])
        return import_fail(im, "node %d has no operator", m->node.count);
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

Status import_nodes(Import *im, Wire body, uint32_t number, const Scope *scope)
{
    WireField f;
    for (Wire w = body; wire_next(&w, &f);)
        if (f.number == number)
            TRY(import_node(im, &f, scope));
    return ST_OK;
}
