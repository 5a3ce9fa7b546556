/* onnx_calls.c - functions that the model defines and the branches of an If: their nodes go into the flat graph. */
#include <string.h>

#include "graph/onnx_import.h"

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
        return import_fail(im, "node \"%.300s\": functions and branches are nested more than %d deep", n->name,
                           (int)MAX_SCOPES);
    if (im->calls++ >= MAX_CALLS)
        return import_fail(im, "node \"%.300s\": functions are called more than %d times", n->name, (int)MAX_CALLS);
    return ST_OK;
}

/* ---- functions ---------------------------------------------------------------------------------- */

int find_function(const Import *im, const Onnx__NodeProto *p, const char *domain)
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
            return import_fail(im,
                               "node \"%.300s\": the function %.100s is written in opset %lld, the model in opset %lld",
                               n->name, n->op, (long long)o->version, (long long)im->m->opset);
    }
    return ST_OK;
}

/* Parameters and results of the call. A result that is a parameter gets a node of its own, since one name cannot be
 * both. */
static Status bind_call(Import *im, const ModelNode *n, const Onnx__FunctionProto *f, const char *const *in,
                        const char *const *out, Scope *s)
{
    size_t most = f->n_input + f->n_output;
    s->formal = ARENA_NEW(im->m->arena, const char *, most);
    s->actual = ARENA_NEW(im->m->arena, const char *, most);
    if (!s->formal || !s->actual)
        return diag_oom(im->d);
    if ((size_t)n->n_in > f->n_input || (size_t)n->n_out > f->n_output)
        return import_fail(im, "node \"%.300s\": has %d inputs and %d outputs, the function %.100s has %zu and %zu",
                           n->name, n->n_in, n->n_out, n->op, f->n_input, f->n_output);
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
            ModelNode same = {
                .name = n->name, .op = "Identity", .domain = "", .n_in = 1, .n_out = 1, .guard = n->guard};
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
Status call_function(Import *im, ModelNode *n, int function, const Onnx__NodeProto *p, const WireField *wire,
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
            return import_fail(im, "node \"%.300s\": the function %.100s needs the attribute %.100s", n->name, n->op,
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
static Status import_branch(Import *im, const ModelNode *n, Wire graph, bool taken, const char *condition,
                            const Scope *outer, const char **results)
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
            return import_fail(im, "sparse initializers are not supported");
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
        return import_fail(im, "node \"%.300s\": a branch has %d results, the node %d", n->name, count, n->n_out);
    return import_nodes(im, graph, 1, &s);
}

/* The condition, then the results of one branch and of the other. The node picks once the condition is known: infer_if.
 */
Status import_branches(Import *im, ModelNode *n, const Onnx__NodeProto *p, const WireField *wire, const char ***in_name,
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
        return import_fail(im, "node \"%.300s\": has no condition", n->name);
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
        return import_fail(im, "node \"%.300s\": a branch is missing", n->name);
    n->n_in = 1 + 2 * n->n_out;
    *in_name = name;
    return ST_OK;
}
