/* graph_text.c - the graph as text, one line each: for --dump and for tests. */
#include "graph/lower.h"

static void print_shape(const Tensor *t, Text *to)
{
    text_add(to, "%s[", ferry_dtype_name(t->dtype));
    for (int i = 0; i < t->rank; i++)
        text_add(to, "%s%lld", i > 0 ? "," : "", (long long)t->dim[i]);
    text_add(to, "]");
}

static void print_param(const Graph *g, const Param *p, Text *to)
{
    text_add(to, "param %s ", p->name);
    print_shape(&g->tensor.at[p->tensor], to);
    text_add(to, " from %s%s", ferry_dtype_name(p->file_dtype), p->trainable ? "" : p->state ? " state" : " frozen");
    if (p->data == NULL)
        text_add(to, " no-data init %s", p->init == INIT_ONE ? "one" : p->init == INIT_ZERO ? "zero" : "normal");
    if (p->unit >= 0 && g->n_unit > 0)
        text_add(to, " unit %s", g->unit[p->unit].name);
    for (int i = 0; i < p->n_alias; i++)
        text_add(to, " alias %s%s", p->alias[i].name, p->alias[i].transposed ? "^T" : "");
    text_add(to, "\n");
}

static void print_call(const ferry_kernel *c, Text *to)
{
    if (c->fn != FERRY_FN_NONE)
        text_add(to, " %s", ferry_fn_name(c->fn));
    if (c->m > 0 || c->k > 0 || c->n > 0) {
        text_add(to, " ");
        if (c->m > 0)
            text_add(to, "m%lld ", (long long)c->m);
        if (c->k > 0)
            text_add(to, "k%lld ", (long long)c->k);
        text_add(to, "n%lld", (long long)c->n);
    }
    for (int i = 0; i < c->rank; i++)
        text_add(to, "%s%lld%s%s", i == 0 ? " dim[" : ",", (long long)c->dim[i],
                 c->op == FERRY_OP_REDUCE && c->axes >> i & 1 ? "*" : "", i == c->rank - 1 ? "]" : "");
    if (c->op == FERRY_OP_FUSED) {
        text_add(to, " {");
        call_program_text(c, to);
        text_add(to, "}");
    }
    if (c->reverse)
        text_add(to, " reverse");
    if (c->offset[0] != 0 || c->offset[1] != 0)
        text_add(to, " offset[%lld,%lld]", (long long)c->offset[0], (long long)c->offset[1]);
    if (c->alpha != 1)
        text_add(to, " alpha %.9g", c->alpha);
    if (c->trans_a)
        text_add(to, " trans_a");
    if (c->trans_b)
        text_add(to, " trans_b");
    if (c->accumulate)
        text_add(to, " accumulate");
}

static void print_node(const Graph *g, int index, Text *to)
{
    const Node *n = &g->node.at[index];
    int n_out = node_n_out(n);
    text_add(to, "%3d %s", index, phase_name(n->phase));
    if (n->segment >= 0)
        text_add(to, " seg %d", n->segment);
    text_add(to, " %s", ferry_op_get(n->call.op)->name);
    print_call(&n->call, to);
    text_add(to, ":");
    for (int k = 0; k < node_n_arg(n); k++) {
        if (k == n_out)
            text_add(to, " =");
        if (n->arg[k] < 0) {
            text_add(to, " -");
            continue;
        }
        const Tensor *t = &g->tensor.at[n->arg[k]];
        text_add(to, " %s", t->name);
        if (t->root != n->arg[k])
            text_add(to, "(%s)", g->tensor.at[t->root].name);
        if (k < n_out) {
            text_add(to, " ");
            print_shape(t, to);
        }
    }
    text_add(to, " ; %s %s\n", n->onnx_op, n->name);
}

void graph_print(const Graph *g, Text *to)
{
    text_add(to, "graph %s: %d parameters, %d units, %d layers, %d forward and %d backward nodes\n",
             ferry_dtype_name(g->precision), g->n_param, g->n_unit, g->n_layer, g->n_forward,
             g->node.count - g->n_forward);
    for (int i = 0; i < g->n_input; i++) {
        text_add(to, "input %s ", g->tensor.at[g->input[i]].name);
        print_shape(&g->tensor.at[g->input[i]], to);
        text_add(to, "\n");
    }
    for (int p = 0; p < g->n_param; p++)
        print_param(g, &g->param[p], to);
    for (int l = 0; l < g->n_layer; l++) {
        text_add(to, "layer %d %s %s node %d", l, g->layer[l].name, g->layer[l].op, g->layer[l].node);
        for (int u = 0; u < g->layer[l].n_unit; u++)
            text_add(to, " %s", g->unit[g->layer[l].unit[u]].name);
        text_add(to, "\n");
    }
    for (int u = 0; u < g->n_unit; u++) {
        const Unit *unit = &g->unit[u];
        text_add(to, "unit %s %lld bytes, gradients %lld:", unit->name, (long long)unit->bytes,
                 (long long)unit->grad_bytes);
        for (int i = 0; i < unit->n_use; i++)
            text_add(to, " %s(%d)", phase_name(unit->use[i].phase), unit->use[i].layer);
        text_add(to, "\n");
    }
    for (int i = 0; i < g->node.count; i++)
        print_node(g, i, to);
    if (g->loss >= 0)
        text_add(to, "loss %s\n", g->tensor.at[g->loss].name);
}
