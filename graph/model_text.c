/* model_text.c - a model as text: one line a value and a node, for --dump and tests. */
#include <string.h>

#include "graph/fold.h"

static void add_shape(Text *to, const Value *v)
{
    text_add(to, "%s[", ferry_dtype_name(v->dtype));
    for (int k = 0; k < v->rank; k++) {
        text_add(to, k ? "," : "");
        if (v->dim[k] >= 0)
            text_add(to, "%lld", (long long)v->dim[k]);
        else
            text_add(to, "%s", v->dim_name[k] ? v->dim_name[k] : "?");
    }
    text_add(to, v->rank < 0 ? "?]" : "]");
}

static void add_number(Text *to, ferry_dtype t, const void *data, int64_t i)
{
    if (dtype_is_float(t))
        text_add(to, " %.9g", num_real(t, data, i));
    else if (t == FERRY_U64)
        text_add(to, " %llu", (unsigned long long)num_int(t, data, i));
    else
        text_add(to, " %lld", (long long)num_int(t, data, i));
}

static void add_value(Text *to, const Value *v)
{
    enum { SHOWN = 8 };
    static const char *const kind[] = {"input", "initializer", "constant", "computed"};
    text_add(to, "%s ", kind[v->kind]);
    text_add_quoted(to, v->name);
    text_add(to, " ");
    add_shape(to, v);
    if (v->data_missing)
        text_add(to, " external data missing");
    if (v->data && v->rank >= 0) {
        int64_t count = value_count(v);
        text_add(to, " =");
        for (int64_t i = 0; i < count && i < SHOWN; i++)
            add_number(to, v->dtype, v->data, i);
        if (count > SHOWN)
            text_add(to, " ...");
    }
    text_add(to, "\n");
}

static void add_attr(Text *to, const Attr *a)
{
    text_add(to, " %s=", a->name);
    switch (a->kind) {
    case ATTR_INT:
        text_add(to, "%lld", (long long)a->i);
        break;
    case ATTR_FLOAT:
        text_add(to, "%.9g", a->f);
        break;
    case ATTR_STRING:
        text_add_quoted(to, a->s);
        break;
    case ATTR_INTS:
        for (int i = 0; i < a->count; i++)
            text_add(to, "%s%lld", i ? "," : "[", (long long)a->ints[i]);
        text_add(to, a->count ? "]" : "[]");
        break;
    case ATTR_FLOATS:
        for (int i = 0; i < a->count; i++)
            text_add(to, "%s%.9g", i ? "," : "[", a->floats[i]);
        text_add(to, a->count ? "]" : "[]");
        break;
    case ATTR_TENSOR:
        add_shape(to, &a->tensor);
        break;
    default:
        text_add(to, "(%s)", a->kind == ATTR_GRAPH ? "graph" : "other");
        break;
    }
}

static void add_names(Text *to, const Model *m, int count, const int *value)
{
    for (int i = 0; i < count; i++) {
        text_add(to, i ? ", " : "");
        if (value[i] < 0)
            text_add(to, "-");
        else
            text_add_quoted(to, m->value.at[value[i]].name);
    }
}

void model_print(const Model *m, Text *to)
{
    text_add(to, "model opset %lld hash %s\n", (long long)m->opset, m->hash);
    for (int i = 0; i < m->value.count; i++)
        add_value(to, &m->value.at[i]);
    for (int i = 0; i < m->node.count; i++) {
        const ModelNode *n = &m->node.at[i];
        text_add(to, "%s ", n->dead ? "dead" : "node");
        text_add_quoted(to, n->name);
        text_add(to, " %s(", n->op);
        add_names(to, m, n->n_in, n->in);
        text_add(to, ") ->%s", n->n_out ? " " : "");
        add_names(to, m, n->n_out, n->out);
        for (int k = 0; k < n->n_attr; k++)
            add_attr(to, &n->attr[k]);
        text_add(to, "\n");
    }
    text_add(to, "outputs ");
    add_names(to, m, m->n_output, m->output);
    text_add(to, "\n");
}
