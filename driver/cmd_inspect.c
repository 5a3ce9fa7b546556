/* ferryc inspect - what a model is made of. */
#include "driver/driver.h"
#include "graph/ops_list.h"

#include <string.h>

enum { OPT_JSON = 0x200, OPT_OPS };

static const struct argp_option OPTIONS[] = {
    {"json", OPT_JSON, 0, 0, "print JSON", 0},
    {"ops", OPT_OPS, 0, 0, "print the table of supported operators; needs no model", 0},
    {0},
};

typedef struct Args {
    ModelArgs model;
    bool json, ops;
} Args;

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->model;
        break;
    case OPT_JSON:
        a->json = true;
        break;
    case OPT_OPS:
        a->ops = true;
        break;
    case ARGP_KEY_ARG:
        if (a->model.options.path)
            argp_error(state, "one model at a time: '%s' is one too many", arg);
        a->model.options.path = arg;
        break;
    case ARGP_KEY_END:
        if (!a->model.options.path && !a->ops)
            argp_error(state, "which model? ferryc inspect MODEL.onnx");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static void shape(Text *t, const Tensor *x)
{
    text_add(t, "[");
    for (int i = 0; i < x->rank; i++)
        text_add(t, "%s%lld", i ? ", " : "", (long long)x->dim[i]);
    text_add(t, "]");
}

static int64_t activation_bytes(const Graph *g)
{
    int64_t bytes = 0;
    for (int i = 0; i < g->tensor.count; i++) {
        const Tensor *x = &g->tensor.at[i];
        if (x->root == i && x->kind == TENSOR_VALUE && x->producer >= 0 && x->producer < g->n_forward)
            bytes += x->bytes;
    }
    return bytes;
}

static void print_text(const Graph *g, Text *t)
{
    char size[32];
    for (int i = 0; i < g->n_input; i++) {
        const Tensor *x = &g->tensor.at[g->input[i]];
        text_add(t, "input  %s %s ", x->name, ferry_dtype_name(x->dtype));
        shape(t, x);
        text_add(t, "\n");
    }
    text_add(t, "%-40s %-14s %12s  %s\n", "layer", "operator", "parameters", "bytes");
    for (int i = 0; i < g->n_layer; i++) {
        const Layer *l = &g->layer[i];
        int64_t count = 0, bytes = 0;
        bool tied = false;
        for (int k = 0; k < l->n_unit; k++) {
            const Unit *u = &g->unit[l->unit[k]];
            tied |= u->use[0].layer != i;
            for (int j = 0; j < u->n_param; j++)
                count += g->param[u->param[j]].count;
            bytes += u->bytes;
        }
        text_add(t, "%-40s %-14s %12lld  %s%s\n", l->name, l->op, (long long)count, size_print(size, bytes),
                 tied ? "  (tied to an earlier layer)" : "");
    }
    int64_t count = 0, bytes = 0, trainable = 0, state_bytes = 0;
    int states = 0;
    for (int i = 0; i < g->n_param; i++) {
        if (g->param[i].state) {
            states++;
            state_bytes += g->param[i].bytes;
            continue;
        }
        count += g->param[i].count;
        bytes += g->param[i].bytes;
        trainable += g->param[i].grad >= 0 ? g->param[i].count : 0;
    }
    text_add(t, "%lld parameters (%lld trained), %s", (long long)count, (long long)trainable, size_print(size, bytes));
    if (states > 0)
        text_add(t, "; %d running statistics, %s", states, size_print(size, state_bytes));
    text_add(t, "; forward values %s\n", size_print(size, activation_bytes(g)));
}

static void print_json(const Graph *g, Text *t)
{
    text_add(t, "{\"inputs\": [");
    for (int i = 0; i < g->n_input; i++) {
        const Tensor *x = &g->tensor.at[g->input[i]];
        text_add(t, "%s{\"name\": ", i ? ", " : "");
        text_add_quoted(t, x->name);
        text_add(t, ", \"dtype\": \"%s\", \"shape\": ", ferry_dtype_name(x->dtype));
        shape(t, x);
        text_add(t, "}");
    }
    text_add(t, "], \"layers\": [");
    for (int i = 0; i < g->n_layer; i++) {
        const Layer *l = &g->layer[i];
        text_add(t, "%s\n  {\"name\": ", i ? "," : "");
        text_add_quoted(t, l->name);
        text_add(t, ", \"op\": ");
        text_add_quoted(t, l->op);
        text_add(t, ", \"units\": [");
        for (int k = 0; k < l->n_unit; k++) {
            text_add(t, "%s", k ? ", " : "");
            text_add_quoted(t, g->unit[l->unit[k]].name);
        }
        text_add(t, "]}");
    }
    text_add(t, "\n], \"units\": [");
    for (int i = 0; i < g->n_unit; i++) {
        const Unit *u = &g->unit[i];
        text_add(t, "%s\n  {\"name\": ", i ? "," : "");
        text_add_quoted(t, u->name);
        text_add(t, ", \"bytes\": %lld, \"gradient_bytes\": %lld, \"parameters\": [", (long long)u->bytes,
                 (long long)u->grad_bytes);
        for (int k = 0; k < u->n_param; k++) {
            text_add(t, "%s", k ? ", " : "");
            text_add_quoted(t, g->param[u->param[k]].name);
        }
        text_add(t, "]}");
    }
    text_add(t, "\n], \"statistics\": [");
    for (int i = 0, n = 0; i < g->n_param; i++)
        if (g->param[i].state) {
            text_add(t, "%s", n++ ? ", " : "");
            text_add_quoted(t, g->param[i].name);
        }
    text_add(t, "], \"forward_bytes\": %lld}\n", (long long)activation_bytes(g));
}

static Status print_ops(Diag *d, bool json)
{
    Text text = {0};
    if (json)
        ops_list_json(&text);
    else
        ops_list_table(&text);
    Status status = text.failed ? diag_oom(d) : ST_OK;
    if (status == ST_OK)
        fputs(text.at, stdout);
    text_free(&text);
    return status;
}

int cmd_inspect(int argc, char **argv)
{
    Diag diag = {0};
    Arena *arena = arena_open();
    if (!arena)
        return finish(&diag, diag_oom(&diag));
    Args args = {0};
    args.model.diag = &diag;
    args.model.arena = arena;
    args.model.options.precision = FERRY_F32;
    args.model.options.allow_missing_data = true;
    const struct argp_child children[] = {{&model_argp, 0, "Model:", 1}, {0}};
    const struct argp parser = {OPTIONS, parse, "MODEL.onnx", "Prints the layers and parameters of a model.", children, NULL, NULL};
    parse_args(&parser, argc, argv, &args);
    model_args_finish(&args.model);
    Model *model = NULL;
    Graph *graph = NULL;
    Status status = args.ops ? print_ops(&diag, args.json)
                             : graph_from_options(&diag, arena, &args.model.options, &model, &graph);
    if (status == ST_OK && !args.ops) {
        Text text = {0};
        if (args.json)
            print_json(graph, &text);
        else
            print_text(graph, &text);
        if (text.failed)
            status = diag_oom(&diag);
        else
            fputs(text.at, stdout);
        text_free(&text);
    }
    graph_close(graph);
    model_close(model);
    model_args_free(&args.model);
    arena_close(arena);
    return finish(&diag, status);
}
