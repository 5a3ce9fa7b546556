/* model_test.h - what the tests of the ONNX stage share: cmocka, opening models, ONNX files built byte by byte. */
#ifndef MODEL_TEST_H
#define MODEL_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "graph/model.h"

#define ROOT FERRY_SOURCE_DIR "/tests/"

static inline void within(const char *message, const char *part)
{
    if (!strstr(message, part))
        fail_msg("'%s' is not in '%s'", part, message);
}

typedef struct Opened {
    Arena *arena;
    Diag d;
    Model *m;
    Status status;
} Opened;

/* import, bind and infer, up to the first failure */
static inline Opened open_options(const ModelOptions *options)
{
    Opened o = {.arena = arena_open(), .d = {.quiet = true}};
    assert_non_null(o.arena);
    o.status = model_import(&o.d, o.arena, options, &o.m);
    if (o.status == ST_OK)
        o.status = model_bind(&o.d, o.m, options);
    else
        assert_null(o.m);
    if (o.status == ST_OK)
        o.status = model_infer(&o.d, o.m);
    assert_int_equal(o.status, o.d.status);
    return o;
}

static inline void close_opened(Opened *o)
{
    model_close(o->m);
    arena_close(o->arena);
    *o = (Opened){0};
}

/* with the first n_dim of --dim batch=4 --dim seq=32 */
static inline Opened open_tiny(const char *path, int n_dim)
{
    static DimBinding dim[] = {{"batch", 4}, {"seq", 32}};
    ModelOptions options = {.path = path, .n_dim = n_dim, .dim = dim};
    Opened o = open_options(&options);
    if (o.status != ST_OK)
        fail_msg("%s", o.d.message);
    return o;
}

static inline Value *value_named(const Model *m, const char *name)
{
    for (int i = 0; i < m->value.count; i++)
        if (strcmp(m->value.at[i].name, name) == 0)
            return &m->value.at[i];
    return NULL;
}

/* ---- protobuf, written -------------------------------------------------------------------------- */

typedef struct Bytes {
    size_t size;
    uint8_t *at;
} Bytes;

static inline void put_bytes(Bytes *b, const void *data, size_t size)
{
    b->at = realloc(b->at, b->size + size + 1);
    if (size)
        memcpy(b->at + b->size, data, size);
    b->size += size;
}

static inline void put_number(Bytes *b, uint64_t x)
{
    do {
        uint8_t byte = (uint8_t)((x & 0x7f) | (x > 0x7f ? 0x80 : 0));
        put_bytes(b, &byte, 1);
        x >>= 7;
    } while (x);
}

static inline void put_int(Bytes *b, int field, int64_t x)
{
    put_number(b, (uint64_t)field << 3);
    put_number(b, (uint64_t)x);
}

static inline void put_field(Bytes *b, int field, const void *data, size_t size)
{
    put_number(b, (uint64_t)field << 3 | 2);
    put_number(b, size);
    put_bytes(b, data, size);
}

static inline void put_text(Bytes *b, int field, const char *s)
{
    put_field(b, field, s, strlen(s));
}

/* a sub-message, whose bytes are freed */
static inline void put_message(Bytes *b, int field, Bytes sub)
{
    put_field(b, field, sub.at, sub.size);
    free(sub.at);
}

/* "a,b,,c": names between commas; "" none */
static inline void put_names(Bytes *b, int field, const char *names)
{
    while (names[0]) {
        size_t n = strcspn(names, ",");
        put_field(b, field, names, n);
        names += n + (names[n] == ',');
    }
}

static inline Bytes attr_int(const char *name, int64_t x)
{
    Bytes a = {0};
    put_text(&a, 1, name);
    put_int(&a, 3, x);
    put_int(&a, 20, 2);
    return a;
}

static inline Bytes attr_ints(const char *name, int count, const int64_t *x)
{
    Bytes a = {0};
    put_text(&a, 1, name);
    for (int i = 0; i < count; i++)
        put_int(&a, 8, x[i]);
    put_int(&a, 20, 7);
    return a;
}

/* a tensor with raw data */
static inline Bytes tensor(const char *name, int type, int rank, const int64_t *dim, const void *raw, size_t size)
{
    Bytes t = {0};
    for (int i = 0; i < rank; i++)
        put_int(&t, 1, dim[i]);
    put_int(&t, 2, type);
    put_text(&t, 8, name);
    put_field(&t, 9, raw, size);
    return t;
}

static inline Bytes ints(const char *name, int count, const int64_t *x)
{
    int64_t dim = count;
    return tensor(name, 7, 1, &dim, x, (size_t)count * 8);
}

static inline Bytes node(const char *name, const char *op, const char *in, const char *out)
{
    Bytes n = {0};
    put_names(&n, 1, in);
    put_names(&n, 2, out);
    put_text(&n, 3, name);
    put_text(&n, 4, op);
    return n;
}

/* a graph input; size -1: the name "batch", -2: neither name nor number */
static inline Bytes info(const char *name, int type, int rank, const int64_t *dim)
{
    Bytes shape = {0}, tensor_type = {0}, t = {0}, v = {0};
    for (int i = 0; i < rank; i++) {
        Bytes d = {0};
        if (dim[i] == -1)
            put_text(&d, 2, "batch");
        else if (dim[i] != -2)
            put_int(&d, 1, dim[i]);
        put_message(&shape, 1, d);
    }
    put_int(&tensor_type, 1, type);
    put_message(&tensor_type, 2, shape);
    put_message(&t, 1, tensor_type);
    put_text(&v, 1, name);
    put_message(&v, 2, t);
    return v;
}

static inline Bytes output(const char *name)
{
    Bytes v = {0};
    put_text(&v, 1, name);
    return v;
}

static inline Bytes opset_import(const char *domain, int64_t version)
{
    Bytes o = {0};
    put_text(&o, 1, domain);
    put_int(&o, 2, version);
    return o;
}

static inline Bytes model_bytes(Bytes graph, int64_t opset)
{
    Bytes m = {0};
    put_int(&m, 1, 8);
    put_message(&m, 7, graph);
    put_message(&m, 8, opset_import("", opset));
    return m;
}

/* Opens these bytes (freed) as a model, through a file in memory. */
static inline Opened open_bytes(Bytes model)
{
    char path[64];
    int fd = memfd_create("model", MFD_CLOEXEC);
    assert_true(fd >= 0 && write(fd, model.at, model.size) == (ssize_t)model.size);
    free(model.at);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    DimBinding dim[] = {{"batch", 4}};
    ModelOptions options = {.path = path};
    Opened o = {.arena = arena_open(), .d = {.quiet = true}};
    o.status = model_import(&o.d, o.arena, &options, &o.m);
    close(fd);
    for (int i = 0; o.status == ST_OK && i < o.m->n_input; i++)
        for (int k = 0; k < o.m->value.at[o.m->input[i]].rank; k++)
            if (o.m->value.at[o.m->input[i]].dim_name[k]) {
                options.n_dim = 1;
                options.dim = dim;
            }
    if (o.status == ST_OK)
        o.status = model_bind(&o.d, o.m, &options);
    if (o.status == ST_OK)
        o.status = model_infer(&o.d, o.m);
    assert_int_equal(o.status, o.d.status);
    return o;
}

/* The bytes are refused with this status and a message that has this part. */
static inline void refused(Bytes model, Status status, const char *part)
{
    Opened o = open_bytes(model);
    if (o.status != status)
        fail_msg("status %d instead of %d: '%s' (expected '%s')", o.status, status, o.d.message, part);
    within(o.d.message, part);
    close_opened(&o);
}

#endif
