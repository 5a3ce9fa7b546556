/* tiny_run.h - a tiny model's graph with its inputs, for tests that run it in two ways. */
#ifndef FERRY_TESTS_TINY_RUN_H
#define FERRY_TESTS_TINY_RUN_H

#include "graph/fuse.h"
#include "tests/unit/graph/graph_make.h"

#define MODELS FERRY_SOURCE_DIR "/tests/models/"

/* A tiny model under way, and its inputs from tests/models/FAMILY/data. */
typedef struct Run {
    Diag d;
    Arena *arena;
    Model *model;
    Graph *g;
    Exec e;
} Run;

static inline void feed(Run *r, const char *family)
{
    for (int i = 0; i < r->g->n_input; i++) {
        char path[512];
        int t = r->g->input[i];
        const Tensor *x = &r->g->tensor.at[t];
        snprintf(path, sizeof(path), MODELS "%s/data/%s.npy", family, x->name);
        ferry_npy *file;
        assert_int_equal(ferry_npy_open(path, &file), FERRY_OK);
        const ferry_tensor *from = ferry_npy_tensor(file);
        assert_int_equal(ferry_convert(r->e.at[t], x->dtype, from->data, from->dtype, x->count), FERRY_OK);
        ferry_npy_close(file);
    }
}

#endif
