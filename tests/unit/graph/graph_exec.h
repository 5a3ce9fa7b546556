/* graph_exec.h - runs a training graph on the host device, for tests: each root tensor has its own heap buffer of
 * exactly its size (so that a sanitizer sees every overrun), and the nodes run one after another. */
#ifndef FERRY_TESTS_GRAPH_EXEC_H
#define FERRY_TESTS_GRAPH_EXEC_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "graph/lower.h"

typedef struct Exec {
    const Graph *g;
    void **at; /* by tensor */
    ferry_device *device;
    ferry_stream *stream;
} Exec;

static inline void exec_open(Exec *e, const Graph *g)
{
    e->g = g;
    e->at = calloc((size_t)g->tensor.count, sizeof(void *));
    assert_non_null(e->at);
    for (int i = 0; i < g->tensor.count; i++) {
        const Tensor *t = &g->tensor.at[i];
        if (t->root != i)
            continue;
        e->at[i] = malloc((size_t)t->bytes);
        assert_non_null(e->at[i]);
        if (t->kind == TENSOR_CONST)
            memcpy(e->at[i], t->data, (size_t)t->bytes);
        else
            memset(e->at[i], 0xff, (size_t)t->bytes); /* NaN: what is read unwritten shows */
        if (t->kind == TENSOR_PARAM && g->param[t->param].data != NULL)
            assert_int_equal(
                ferry_convert(e->at[i], t->dtype, g->param[t->param].data, g->param[t->param].file_dtype, t->count),
                FERRY_OK);
    }
    for (int i = 0; i < g->tensor.count; i++)
        e->at[i] = e->at[g->tensor.at[i].root];
    assert_int_equal(ferry_device_open("host", &e->device), FERRY_OK);
    assert_int_equal(ferry_stream_open(e->device, FERRY_STREAM_COMPUTE, &e->stream), FERRY_OK);
}

static inline void exec_close(Exec *e)
{
    ferry_stream_close(e->stream);
    ferry_device_close(e->device);
    for (int i = 0; i < e->g->tensor.count; i++)
        if (e->g->tensor.at[i].root == i)
            free(e->at[i]);
    free(e->at);
}

/* Runs nodes [0, count); all of them for forward and backward. */
static inline void exec_run(Exec *e, int count)
{
    for (int i = 0; i < count; i++) {
        ferry_kernel call = node_call(e->g, &e->g->node.at[i], e->at);
        if (ferry_launch(e->stream, &call) != FERRY_OK) {
            print_error("node %d (%s): %s\n", i, e->g->node.at[i].name, ferry_error());
            fail();
        }
    }
    if (ferry_stream_sync(e->stream) != FERRY_OK) {
        print_error("%s\n", ferry_error());
        fail();
    }
}

static inline int exec_tensor(const Exec *e, const char *name)
{
    for (int i = 0; i < e->g->tensor.count; i++)
        if (strcmp(e->g->tensor.at[i].name, name) == 0)
            return i;
    print_error("no tensor '%s'\n", name);
    fail();
    return -1;
}

/* The fp64 loss of a graph after a run. */
static inline double exec_loss(const Exec *e)
{
    return *(const double *)e->at[e->g->loss];
}

#endif
