/* Any bytes as an ONNX model: an error with a message, or a model whose values have shapes and whose known data is all
 * there. */
#include "memory_file.h"

#include <string.h>

#include "graph/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_values(const Model *m)
{
    for (int i = 0; i < m->value.count; i++) {
        const Value *v = &m->value.at[i];
        if (v->rank < 0 && v->producer >= 0 && m->node.at[v->producer].dead) {
            continue; /* in a branch of an If that is not taken */
        }
        if (v->rank < 0 || v->rank > MAX_RANK) {
            abort();
        }
        for (int k = 0; k < v->rank; k++) {
            if (v->dim[k] < 0) {
                abort();
            }
        }
        if (v->data) {
            if ((uintptr_t)v->data % ferry_dtype_bytes(v->dtype) != 0) {
                abort();
            }
            touch_bytes(v->data, value_count(v) * (int64_t)ferry_dtype_bytes(v->dtype));
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Arena *a = arena_open();
    Diag d = {.quiet = true};
    DimBinding dim[] = {{"batch", 3}, {"seq", 5}};
    ModelOptions options = {.path = memory_file(data, size), .allow_missing_data = true};
    Model *m;
    if (!a) {
        abort();
    }
    Status status = model_import(&d, a, &options, &m);
    if (status == ST_OK) {
        /* only names that the model has may be bound */
        for (int k = 0; k < 2; k++) {
            bool found = false;
            for (int i = 0; i < m->n_input; i++) {
                const Value *v = &m->value.at[m->input[i]];
                for (int axis = 0; axis < v->rank; axis++) {
                    found = found || (v->dim_name[axis] && strcmp(v->dim_name[axis], dim[k].name) == 0);
                }
            }
            if (found) {
                dim[options.n_dim++] = dim[k];
            }
        }
        options.dim = dim;
        status = model_bind(&d, m, &options);
    }
    if (status == ST_OK) {
        status = model_infer(&d, m);
    }
    if (status == ST_OK) {
        Text t = {0};
        check_values(m);
        model_print(m, &t);
        text_free(&t);
    } else if (d.message[0] == 0 || status != d.status || (status != ST_MODEL && status != ST_USAGE)) {
        abort();
    }
    model_close(m);
    arena_close(a);
    return 0;
}
