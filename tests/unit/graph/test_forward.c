/* Forward graphs: inputs with their contents, types and shapes; which of them the compiler has to know; outputs of
 * every kind; what is refused. */
#include "graph/exec.h"
#include "tests/unit/graph/model_test.h"

typedef struct Ran {
    Arena *arena;
    Diag d;
    Model *m;
    Graph *g;
    ferry_tensor *out;
    Status status;
} Ran;

static Ran run_model(Bytes model, ferry_dtype precision, int n_feed, const ferry_tensor *feed)
{
    char path[64];
    int fd = memfd_create("model", MFD_CLOEXEC);
    assert_true(fd >= 0 && write(fd, model.at, model.size) == (ssize_t)model.size);
    free(model.at);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ModelOptions options = {.path = path, .precision = precision};
    Ran r = {.arena = arena_open(), .d = {.quiet = true}};
    r.status = forward_from_options(&r.d, r.arena, &options, n_feed, feed, &r.m, &r.g);
    close(fd);
    if (r.status == ST_OK) {
        r.out = ARENA_NEW(r.arena, ferry_tensor, r.g->n_output);
        r.status = graph_execute(&r.d, r.arena, r.g, r.out);
    }
    assert_int_equal(r.status, r.d.status);
    return r;
}

static void done(Ran *r)
{
    graph_close(r->g);
    model_close(r->m);
    arena_close(r->arena);
}

static void passes(const Ran *r)
{
    if (r->status != ST_OK)
        fail_msg("%s", r->d.message);
}

static void fails(Bytes model, int n_feed, const ferry_tensor *feed, Status status, const char *part)
{
    Ran r = run_model(model, FERRY_DTYPE_COUNT, n_feed, feed);
    if (r.status != status)
        fail_msg("status %d: '%s'", r.status, r.d.message);
    within(r.d.message, part);
    done(&r);
}

enum { ONNX_F32 = 1, ONNX_U8 = 2, ONNX_I64 = 7, ONNX_BOOL = 9, ONNX_F16 = 10, ONNX_F64 = 11 };

static ferry_tensor feed_of(const char *name, ferry_dtype t, int rank, const int64_t *dim, const void *data)
{
    ferry_tensor f = {.name = name, .dtype = t, .rank = rank, .data = (void *)(uintptr_t)data};
    for (int i = 0; i < rank; i++)
        f.dim[i] = dim[i];
    return f;
}

/* y = x + x over "batch" rows */
static Bytes doubled(int type)
{
    Bytes g = {0};
    put_message(&g, 11, info("x", type, 2, (int64_t[]){-1, 2}));
    put_message(&g, 1, node("add", "Add", "x,x", "y"));
    put_message(&g, 12, output("y"));
    return model_bytes(g, 17);
}

static void test_types(void **state)
{
    (void)state;
    const int64_t dim[] = {1, 2};
    const double f64[] = {1e300, 0.1};
    ferry_tensor x = feed_of("x", FERRY_F64, 2, dim, f64);
    Ran r = run_model(doubled(ONNX_F64), FERRY_DTYPE_COUNT, 1, &x);
    passes(&r);
    assert_int_equal(r.g->precision, FERRY_F64);
    assert_true(r.out[0].dtype == FERRY_F64 && ((double *)r.out[0].data)[0] == 2e300 &&
                ((double *)r.out[0].data)[1] == 0.2);
    done(&r);
    const float f32[] = {0.1f, -2}; /* narrower than the model: taken */
    x = feed_of("x", FERRY_F32, 2, dim, f32);
    r = run_model(doubled(ONNX_F64), FERRY_DTYPE_COUNT, 1, &x);
    passes(&r);
    assert_true(((double *)r.out[0].data)[0] == 2 * (double)0.1f);
    done(&r);
    r = run_model(doubled(ONNX_F16), FERRY_F64, 1, &x); /* halves may come as f32, and go out as halves */
    passes(&r);
    assert_true(r.out[0].dtype == FERRY_F16 && ((uint16_t *)r.out[0].data)[0] == 0x3266 &&
                ((uint16_t *)r.out[0].data)[1] == 0xc400);
    done(&r);
    const uint8_t u8[] = {100, 200}; /* wraps as its type does */
    x = feed_of("x", FERRY_U8, 2, dim, u8);
    r = run_model(doubled(ONNX_U8), FERRY_DTYPE_COUNT, 1, &x);
    passes(&r);
    assert_true(r.out[0].dtype == FERRY_U8 && ((uint8_t *)r.out[0].data)[0] == 200 &&
                ((uint8_t *)r.out[0].data)[1] == 144);
    done(&r);
}

static void test_no_elements(void **state)
{
    (void)state;
    ferry_tensor x = feed_of("x", FERRY_F32, 2, (int64_t[]){0, 2}, NULL);
    Ran r = run_model(doubled(ONNX_F32), FERRY_DTYPE_COUNT, 1, &x);
    passes(&r);
    assert_true(r.out[0].rank == 2 && r.out[0].dim[0] == 0 && r.out[0].dim[1] == 2);
    done(&r);
}

/* An input, a constant, a view, one value twice, a truth value; a temporary on the way whose bytes are given back. */
static void test_outputs(void **state)
{
    (void)state;
    Bytes g = {0};
    const int64_t two[] = {2, 1}, shape[] = {1, 2};
    const float c[] = {3, 4}, x[] = {-1, 5};
    put_message(&g, 11, info("x", ONNX_F32, 2, two));
    put_message(&g, 5, tensor("c", ONNX_F32, 0, NULL, c, 4));
    put_message(&g, 5, ints("shape", 2, shape));
    put_message(&g, 1, node("add", "Add", "x,c", "t"));
    put_message(&g, 1, node("relu", "Relu", "t", "y"));
    put_message(&g, 1, node("view", "Reshape", "y,shape", "v"));
    put_message(&g, 1, node("positive", "Greater", "y,c", "b"));
    put_message(&g, 1, node("shape", "Shape", "x", "s"));
    const char *const names[] = {"x", "c", "s", "y", "v", "y", "b"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        put_message(&g, 12, output(names[i]));
    ferry_tensor f = feed_of("x", FERRY_F32, 2, two, x);
    Ran r = run_model(model_bytes(g, 17), FERRY_DTYPE_COUNT, 1, &f);
    passes(&r);
    assert_int_equal(r.g->n_output, 7);
    for (int i = 0; i < 7; i++)
        assert_string_equal(r.out[i].name, names[i]);
    assert_memory_equal(r.out[0].data, x, sizeof x);
    assert_true(*(float *)r.out[1].data == 3 && r.out[1].rank == 0);
    assert_true(r.out[2].dtype == FERRY_I64 && ((int64_t *)r.out[2].data)[0] == 2 &&
                ((int64_t *)r.out[2].data)[1] == 1);
    for (int i = 3; i < 6; i++)
        assert_true(((float *)r.out[i].data)[0] == 2 && ((float *)r.out[i].data)[1] == 8);
    assert_true(r.out[4].dim[0] == 1 && r.out[4].dim[1] == 2);
    assert_true(r.out[6].dtype == FERRY_BOOL && ((uint8_t *)r.out[6].data)[0] == 0 &&
                ((uint8_t *)r.out[6].data)[1] == 1);
    done(&r);
}

/* A shape that the model computes from an input's contents is known, other contents are not. */
static void test_known_inputs(void **state)
{
    (void)state;
    Bytes g = {0};
    const int64_t four = 4, two = 2, target[] = {1, 1}, more = 1;
    const float x[] = {1, 2, 3, 4};
    put_message(&g, 11, info("x", ONNX_F32, 1, &four));
    put_message(&g, 11, info("half", ONNX_I64, 1, &two));
    put_message(&g, 5, ints("one", 1, &more));
    put_message(&g, 1, node("double", "Add", "half,one", "shape"));
    put_message(&g, 1, node("view", "Reshape", "x,shape", "y"));
    put_message(&g, 12, output("y"));
    ferry_tensor f[] = {feed_of("half", FERRY_I64, 1, &two, target), feed_of("x", FERRY_F32, 1, &four, x)};
    Ran r = run_model(model_bytes(g, 17), FERRY_DTYPE_COUNT, 2, f);
    passes(&r);
    assert_true(r.out[0].rank == 2 && r.out[0].dim[0] == 2 && r.out[0].dim[1] == 2);
    assert_memory_equal(r.out[0].data, x, sizeof x);
    const Value *v = value_named(r.m, "x"), *half = value_named(r.m, "half");
    assert_true(v->data == NULL && half->data != NULL);
    done(&r);
}

static void test_refused(void **state)
{
    (void)state;
    const int64_t dim[] = {1, 2}, wide[] = {1, 3};
    const float x[] = {1, 2, 3};
    const double d[] = {1, 2};
    const int64_t whole[] = {1, 300};
    ferry_tensor good = feed_of("x", FERRY_F32, 2, dim, x), other = feed_of("z", FERRY_F32, 2, dim, x);
    fails(doubled(ONNX_F32), 0, NULL, ST_USAGE, "'x'");
    fails(doubled(ONNX_F32), 1, &other, ST_USAGE, "no input 'z'");
    fails(doubled(ONNX_F32), 2, (ferry_tensor[]){good, good}, ST_USAGE, "twice");
    ferry_tensor f = feed_of("x", FERRY_F32, 2, wide, x);
    fails(doubled(ONNX_F32), 1, &f, ST_MODEL, "[1, 3]");
    f = feed_of("x", FERRY_F32, 1, wide, x);
    fails(doubled(ONNX_F32), 1, &f, ST_MODEL, "2 dimensions");
    f = feed_of("x", FERRY_F64, 2, dim, d); /* would lose digits */
    fails(doubled(ONNX_F32), 1, &f, ST_MODEL, "f64");
    f = feed_of("x", FERRY_I64, 2, dim, whole);
    fails(doubled(ONNX_F32), 1, &f, ST_MODEL, "i64");
    fails(doubled(ONNX_U8), 1, &f, ST_MODEL, "300");
    /* two inputs that disagree about a dimension */
    Bytes g = {0};
    put_message(&g, 11, info("a", ONNX_F32, 1, (int64_t[]){-1}));
    put_message(&g, 11, info("b", ONNX_F32, 1, (int64_t[]){-1}));
    put_message(&g, 1, node("add", "Add", "a,b", "y"));
    put_message(&g, 12, output("y"));
    ferry_tensor ab[] = {feed_of("a", FERRY_F32, 1, (int64_t[]){2}, x), feed_of("b", FERRY_F32, 1, (int64_t[]){3}, x)};
    fails(model_bytes(g, 17), 2, ab, ST_MODEL, "batch is 2 by input 'a' but 3 by input 'b'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),        cmocka_unit_test(test_no_elements), cmocka_unit_test(test_outputs),
        cmocka_unit_test(test_known_inputs), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
