/* emit_weights.c - the parameters under their ONNX names, and the constants that kernels read. */
#include "codegen/codegen.h"

#include <string.h>

/* libferry's errors become the compiler's. */
static Status from_ferry(Diag *d, ferry_status status)
{
    if (status == FERRY_OK)
        return ST_OK;
    return diag_fail(d, (Status)status, "%s", ferry_error());
}

static void set_shape(ferry_tensor *t, const Tensor *x)
{
    t->rank = x->rank;
    memcpy(t->dim, x->dim, sizeof t->dim);
}

Status emit_weights_check(Emitter *e)
{
    const Graph *g = e->graph;
    for (int i = 0; i < g->n_param && !e->options->random_init; i++)
        if (!g->param[i].data) {
            diag_fail(e->diag, ST_MODEL, "%s: the values of parameter '%s' are not there: its external data file is missing",
                      g->model ? g->model->path : "model", g->param[i].name);
            return diag_hint(e->diag, "put the file beside the model, or draw the weights at random: --random-init 1");
        }
    return ST_OK;
}

Status emit_weights(Emitter *e)
{
    const Graph *g = e->graph;
    const StepList *s = e->steps;
    ferry_tensor *list = ARENA_NEW(e->arena, ferry_tensor, g->n_param + s->n_buffer);
    const char *dir = e->options->dir;
    const char *weights = path_join(e->arena, dir, "weights.safetensors");
    const char *constants = path_join(e->arena, dir, "constants.safetensors");
    if (!list || !weights || !constants)
        return diag_oom(e->diag);
    const ferry_meta meta[] = {{"schema", "ferryc/weights/1"}, {"model", e->profile->model_hash}};

    if (!e->options->random_init) {
        for (int i = 0; i < g->n_param; i++) {
            const Param *p = &g->param[i];
            list[i] = (ferry_tensor){.name = p->name, .dtype = p->file_dtype, .data = (void *)(uintptr_t)p->data};
            set_shape(&list[i], &g->tensor.at[p->tensor]);
        }
        TRY(from_ferry(e->diag, ferry_weights_write(weights, list, g->n_param, meta, 2)));
    }

    int n = 0;
    for (int i = 0; i < s->n_buffer; i++) {
        if (s->buffer[i].kind != BUFFER_CONST)
            continue;
        const Tensor *x = &g->tensor.at[s->buffer[i].tensor];
        list[n] = (ferry_tensor){.name = x->name, .dtype = x->dtype, .data = (void *)(uintptr_t)x->data};
        set_shape(&list[n++], x);
    }
    if (n)
        TRY(from_ferry(e->diag, ferry_weights_write(constants, list, n, meta, 2)));
    return ST_OK;
}
