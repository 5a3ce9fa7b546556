/* test_export.c - new values in a copy of an ONNX file: every way in which a tensor can be stored, and what must not
 * change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "graph/onnx_export.h"
#include "graph/onnx_wire.h"

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static void varint(Text *t, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        text_add_bytes(t, (char[]){(char)(v | 0x80)}, 1);
    text_add_bytes(t, (char[]){(char)v}, 1);
}

static void put_int(Text *t, int field, uint64_t v)
{
    varint(t, (uint64_t)field << 3);
    varint(t, v);
}

static void put(Text *t, int field, const void *bytes, size_t size)
{
    varint(t, (uint64_t)field << 3 | 2);
    varint(t, size);
    text_add_bytes(t, bytes, size);
}

static void put_text(Text *t, int field, const char *s)
{
    put(t, field, s, strlen(s));
}

static void put_message(Text *t, int field, Text *inner)
{
    put(t, field, inner->at ? inner->at : "", inner->size);
    text_free(inner);
}

static void entry(Text *t, int field, const char *key, const char *value)
{
    Text e = {0};
    put_text(&e, 1, key);
    put_text(&e, 2, value);
    put_message(t, field, &e);
}

/* dims, type, an unknown field, the data, documentation after it. */
static Text head(const char *name, int type, int rank, const int64_t *dim)
{
    Text t = {0};
    put_text(&t, 8, name);
    for (int i = 0; i < rank; i++)
        put_int(&t, 1, (uint64_t)dim[i]);
    put_int(&t, 2, (uint64_t)type);
    put_text(&t, 77, "unknown");
    return t;
}

static const float OLD[6] = {1, 2, 3, 4, 5, 6};
enum { FAR = 3000 }; /* elements of the tensor outside, which is large enough to stay there */

typedef struct File {
    Arena *a;
    char *dir, *model, *out;
    float far[FAR];
    Text bytes;
} File;

/* raw: f32 [2, 3]; list: f32 [2, 3] as float_data; half: f16 [3] as int32_data; double: f64 [2]; far: f32 [3000]
 * outside; table: i64 [2] outside; constant: a node's tensor outside. */
static File file_open(void)
{
    File f = {.a = arena_open()};
    Text graph = {0}, node = {0}, attribute = {0}, t;
    f.dir = arena_strdup(f.a, P_tmpdir "/test_export_XXXXXX");
    assert_non_null(mkdtemp(f.dir));
    f.model = path_join(f.a, f.dir, "m.onnx");
    f.out = path_join(f.a, f.dir, "t.onnx");
    const double two[] = {0.5, -0.25};
    const int64_t table[] = {7, 9};
    for (int i = 0; i < FAR; i++)
        f.far[i] = (float)i / 8;

    t = head("constant", 7, 1, (int64_t[]){2});
    entry(&t, 13, "location", "far.bin");
    entry(&t, 13, "offset", "12000");
    entry(&t, 13, "length", "16");
    put_int(&t, 14, 1);
    put_text(&attribute, 1, "value");
    put_message(&attribute, 5, &t);
    put_int(&attribute, 20, 4);
    put_text(&node, 2, "c");
    put_text(&node, 4, "Constant");
    put_message(&node, 5, &attribute);
    put_message(&graph, 1, &node);

    t = head("raw", 1, 2, (int64_t[]){2, 3});
    put(&t, 9, OLD, sizeof OLD);
    put_text(&t, 12, "documentation");
    put_message(&graph, 5, &t);
    t = head("list", 1, 2, (int64_t[]){3, 2});
    put(&t, 4, OLD, sizeof OLD);
    put_message(&graph, 5, &t);
    t = head("half", 10, 1, (int64_t[]){3});
    Text packed = {0};
    for (int i = 0; i < 3; i++)
        varint(&packed, 0x3c00); /* 1.0 */
    put_message(&t, 5, &packed);
    put_message(&graph, 5, &t);
    t = head("double", 11, 1, (int64_t[]){2});
    put(&t, 9, two, sizeof two);
    put_message(&graph, 5, &t);
    t = head("far", 1, 1, (int64_t[]){FAR});
    put_int(&t, 14, 1);
    entry(&t, 13, "location", "far.bin");
    put_message(&graph, 5, &t);
    t = head("table", 7, 1, (int64_t[]){2});
    put_int(&t, 14, 1);
    entry(&t, 13, "location", "far.bin");
    entry(&t, 13, "offset", "12000");
    put_message(&graph, 5, &t);
    put_text(&graph, 10, "the graph's documentation");

    put_int(&f.bytes, 1, 8);
    entry(&f.bytes, 14, "author", "somebody");
    put_message(&f.bytes, 7, &graph);
    put_text(&f.bytes, 99, "a field of the future");
    Diag d = {0};
    assert_int_equal(file_write(&d, f.model, f.bytes.at, f.bytes.size), ST_OK);
    Text far = {0};
    text_add_bytes(&far, (char *)f.far, sizeof f.far);
    text_add_bytes(&far, (char *)table, sizeof table);
    assert_int_equal(file_write(&d, path_join(f.a, f.dir, "far.bin"), far.at, far.size), ST_OK);
    text_free(&far);
    return f;
}

static void file_close(File *f)
{
    char command[200];
    snprintf(command, sizeof command, "rm -rf %s", f->dir);
    assert_int_equal(system(command), 0);
    text_free(&f->bytes);
    arena_close(f->a);
}

static Status run(File *f, Diag *d, const ExportWeight *w, int n, int64_t inline_bytes, ExportReport *report)
{
    *d = (Diag){.quiet = true};
    ExportOptions o = {.model = f->model, .out = f->out, .n_weight = n, .weight = w, .inline_bytes = inline_bytes};
    return onnx_export(d, f->a, &o, report);
}

/* ---- reading it again -------------------------------------------------------------------------------------------- */

static void read_all(File *f, const char *path, uint8_t **bytes, int64_t *size)
{
    Diag d = {0};
    if (file_read(&d, path, 1 << 24, bytes, size) != ST_OK)
        fail_msg("%s", d.message);
    (void)f;
}

/* The tensor of this name, wherever it is, decoded by the importer's own reader. */
static Value find(File *f, const char *name)
{
    uint8_t *bytes;
    int64_t size;
    read_all(f, f->out, &bytes, &size);
    Diag d = {0};
    assert_int_equal(onnx_scan(&d, f->out, bytes, (size_t)size), ST_OK);
    Model *m = ARENA_NEW(f->a, Model, 1);
    m->arena = f->a;
    m->path = f->out;
    Value v = {0};
    WireField x, y, z, u;
    for (Wire w = {bytes, bytes + size, NULL}; wire_next(&w, &x);)
        for (Wire g = {x.at, x.at + x.size, NULL}; x.number == 7 && wire_next(&g, &y);) {
            Value at = {0};
            if (y.number == 5)
                assert_int_equal(tensor_decode(&d, m, "t", y.at, y.size, false, &at), ST_OK);
            for (Wire n = {y.at, y.at + y.size, NULL}; y.number == 1 && wire_next(&n, &z);)
                for (Wire t = {z.at, z.at + z.size, NULL}; z.number == 5 && wire_next(&t, &u);)
                    if (u.number == 5)
                        assert_int_equal(tensor_decode(&d, m, "t", u.at, u.size, false, &at), ST_OK);
            if (at.name && strcmp(at.name, name) == 0)
                v = at;
        }
    assert_non_null(v.data);
    size_t bytes_of_v = (size_t)value_count(&v) * ferry_dtype_bytes(v.dtype);
    void *copy = arena_alloc(f->a, bytes_of_v, 1); /* the maps go away */
    v.data = memcpy(copy, v.data, bytes_of_v);
    model_close(m);
    base_free(bytes);
    return v;
}

static ferry_tensor tensor_f64(const double *v, int rank, int64_t d0, int64_t d1)
{
    return (ferry_tensor){"new", FERRY_F64, rank, {d0, d1}, (void *)(uintptr_t)v};
}

static const double NEW[6] = {10, 20, 30, 40, 50, 60};

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void test_every_storage(void **state)
{
    (void)state;
    for (int outside = 0; outside < 2; outside++) {
        File f = file_open();
        Diag d;
        ExportReport r;
        double far[FAR], two[2] = {1e-300, 1e300};
        for (int i = 0; i < FAR; i++)
            far[i] = i;
        ferry_tensor m = tensor_f64(NEW, 2, 2, 3), h = tensor_f64(NEW, 1, 3, 0), t = tensor_f64(two, 1, 2, 0),
                     l = tensor_f64(far, 1, FAR, 0);
        const ExportWeight w[] = {
            {"raw", &m, false}, {"list", &m, true}, {"half", &h, false}, {"double", &t, false}, {"far", &l, false}};
        if (run(&f, &d, w, 5, outside ? 0 : EXPORT_INLINE_BYTES, &r) != ST_OK)
            fail_msg("%s", d.message);
        assert_int_equal(r.changed, 5);
        assert_int_equal(r.unchanged, 0);
        assert_int_equal(r.data_bytes > 0, outside);
        assert_int_equal(file_exists(arena_printf(f.a, "%s.data", f.out)), outside);
        /* nothing is read from the old file any more */
        assert_int_equal(unlink(path_join(f.a, f.dir, "far.bin")), 0);
        const float *raw = find(&f, "raw").data, *list = find(&f, "list").data, *got = find(&f, "far").data;
        const uint16_t *half = find(&f, "half").data;
        const double *dbl = find(&f, "double").data;
        const int64_t *table = find(&f, "table").data, *constant = find(&f, "constant").data;
        static const float transposed[6] = {10, 40, 20, 50, 30, 60};
        static const uint16_t halves[3] = {0x4900, 0x4d00, 0x4f80};
        for (int i = 0; i < 6; i++) {
            assert_true(raw[i] == (float)NEW[i]);
            assert_true(list[i] == transposed[i]);
        }
        assert_memory_equal(half, halves, sizeof halves);
        assert_memory_equal(dbl, two, sizeof two);
        for (int i = 0; i < FAR; i++)
            assert_true(got[i] == (float)i);
        assert_true(table[0] == 7 && table[1] == 9 && constant[0] == 7 && constant[1] == 9);
        /* what ferryc does not know is still there */
        uint8_t *bytes;
        int64_t size;
        read_all(&f, f.out, &bytes, &size);
        static const char *const kept[] = {"unknown", "documentation", "the graph's documentation",
                                           "a field of the future", "somebody"};
        for (int i = 0; i < 5; i++)
            assert_non_null(memmem(bytes, (size_t)size, kept[i], strlen(kept[i])));
        base_free(bytes);
        file_close(&f);
    }
}

/* Values that do not change leave every byte as it is, whatever their storage; only the mark is added, once. */
static void test_same_values(void **state)
{
    (void)state;
    File f = file_open();
    Diag d;
    ExportReport r;
    ferry_tensor m = {"new", FERRY_F32, 2, {2, 3}, (void *)(uintptr_t)OLD},
                 m2 = {"new", FERRY_F32, 2, {3, 2}, (void *)(uintptr_t)OLD};
    double ones[3] = {1, 1, 1};
    ferry_tensor h = tensor_f64(ones, 1, 3, 0);
    const ExportWeight w[] = {{"raw", &m, false}, {"list", &m2, false}, {"half", &h, false}};
    assert_int_equal(run(&f, &d, w, 3, EXPORT_INLINE_BYTES, &r), ST_OK);
    assert_int_equal(r.unchanged, 3);
    assert_int_equal(r.changed, 0);
    /* a second export of the export: all is inside now, so every byte stays, the old mark goes and the new one is equal
     */
    char *first = f.out, *second = path_join(f.a, f.dir, "u.onnx");
    f.model = first;
    f.out = second;
    assert_int_equal(run(&f, &d, w, 3, EXPORT_INLINE_BYTES, &r), ST_OK);
    uint8_t *one, *two;
    int64_t one_size, two_size;
    read_all(&f, first, &one, &one_size);
    read_all(&f, second, &two, &two_size);
    assert_int_equal(one_size, two_size);
    assert_memory_equal(one, two, (size_t)one_size);
    base_free(one);
    base_free(two);
    /* ours, so it is replaced; edited, it is not */
    assert_int_equal(run(&f, &d, w, 3, EXPORT_INLINE_BYTES, &r), ST_OK);
    FILE *edit = fopen(second, "r+b");
    assert_non_null(edit);
    fputc(9, edit);
    fclose(edit);
    assert_int_equal(run(&f, &d, w, 3, EXPORT_INLINE_BYTES, &r), ST_USAGE);
    assert_non_null(strstr(d.hint, "-f"));
    file_close(&f);
}

static void refused(File *f, Status status, const char *message, const ExportWeight *w, int n)
{
    Diag d;
    ExportReport r;
    assert_int_equal(run(f, &d, w, n, EXPORT_INLINE_BYTES, &r), status);
    if (!strstr(d.message, message))
        fail_msg("'%s' is not about '%s'", d.message, message);
    assert_false(file_exists(f->out));
}

static void test_refused(void **state)
{
    (void)state;
    File f = file_open();
    const double large[] = {1, 1e6, 1}, infinite[] = {1, INFINITY, 1};
    const int64_t whole[] = {1, 2};
    ferry_tensor m = tensor_f64(NEW, 2, 2, 3), l = tensor_f64(large, 1, 3, 0), inf = tensor_f64(infinite, 1, 3, 0),
                 three = tensor_f64(NEW, 1, 3, 0), i = {"new", FERRY_I64, 1, {2}, (void *)(uintptr_t)whole};
    refused(&f, ST_MODEL, "no initializer \"nobody\"", &(ExportWeight){"nobody", &m, false}, 1);
    refused(&f, ST_MODEL, "\"raw\" is [2, 3], its new values are [2, 3] (transposed)", &(ExportWeight){"raw", &m, true},
            1);
    refused(&f, ST_MODEL, "\"list\" is [3, 2], its new values are [2, 3]", &(ExportWeight){"list", &m, false}, 1);
    refused(&f, ST_MODEL, "\"half\" is [3]", &(ExportWeight){"half", &m, false}, 1);
    refused(&f, ST_MODEL, "cannot hold 1e+06", &(ExportWeight){"half", &l, false}, 1);
    refused(&f, ST_MODEL, "\"table\"", &(ExportWeight){"table", &i, false}, 1);
    refused(&f, ST_MODEL, "\"constant\"", &(ExportWeight){"constant", &i, false}, 1); /* not an initializer */
    assert_int_equal(unlink(path_join(f.a, f.dir, "far.bin")), 0);
    refused(&f, ST_MODEL, "\"constant\" is not a trained parameter", &(ExportWeight){"half", &three, false}, 1);
    Diag d;
    ExportReport r;
    f.model = path_join(f.a, f.dir, "gone.onnx");
    refused(&f, ST_USAGE, "gone.onnx", &(ExportWeight){"half", &three, false}, 1);
    file_close(&f);

    f = file_open();
    const ExportWeight w = {"half", &inf, false}; /* infinite before: that is what it is */
    assert_int_equal(run(&f, &d, &w, 1, EXPORT_INLINE_BYTES, &r), ST_OK);
    ExportOptions o = {.model = f.model,
                       .out = f.out,
                       .model_hash = "00000000000000000000000000000000",
                       .inline_bytes = EXPORT_INLINE_BYTES};
    d = (Diag){.quiet = true};
    assert_int_equal(onnx_export(&d, f.a, &o, &r), ST_MODEL);
    assert_non_null(strstr(d.message, "hash"));
    d = (Diag){.quiet = true};
    o = (ExportOptions){.model = f.model, .out = f.model, .inline_bytes = EXPORT_INLINE_BYTES, .force = true};
    assert_int_equal(onnx_export(&d, f.a, &o, &r), ST_USAGE);
    o.out = path_join(f.a, f.dir, "no/where.onnx");
    d = (Diag){.quiet = true};
    assert_int_equal(onnx_export(&d, f.a, &o, &r), ST_USAGE);
    file_close(&f);
}

/* y = x * w, with a w of its own in either branch. */
static char *branches(File *f)
{
    Text graph = {0}, model = {0}, t, n, a, value = {0}, type = {0}, shape = {0}, opset = {0};
    const bool yes = true;
    const float w[2][2] = {{1, 2}, {3, 4}};
    t = head("cond", 9, 0, NULL);
    put(&t, 9, &yes, 1);
    put_message(&graph, 5, &t);
    n = (Text){0};
    put_text(&n, 1, "cond");
    put_text(&n, 2, "y");
    put_text(&n, 3, "pick");
    put_text(&n, 4, "If");
    for (int i = 0; i < 2; i++) {
        Text branch = {0}, mul = {0}, out = {0};
        put_text(&mul, 1, "x");
        put_text(&mul, 1, "w");
        put_text(&mul, 2, "p");
        put_text(&mul, 4, "Mul");
        put_message(&branch, 1, &mul);
        t = head("w", 1, 1, (int64_t[]){2});
        put(&t, 9, w[i], sizeof w[i]);
        put_message(&branch, 5, &t);
        put_text(&out, 1, "p");
        put_message(&branch, 12, &out);
        a = (Text){0};
        put_text(&a, 1, i == 0 ? "then_branch" : "else_branch");
        put_message(&a, 6, &branch);
        put_int(&a, 20, 5);
        put_message(&n, 5, &a);
    }
    put_message(&graph, 1, &n);
    a = (Text){0};
    put_int(&a, 1, 2);
    put_message(&shape, 1, &a);
    put_int(&type, 1, 1);
    put_message(&type, 2, &shape);
    a = (Text){0};
    put_message(&a, 1, &type);
    put_text(&value, 1, "x");
    put_message(&value, 2, &a);
    put_message(&graph, 11, &value);
    a = (Text){0};
    put_text(&a, 1, "y");
    put_message(&graph, 12, &a);
    put_int(&opset, 2, 17);
    put_int(&model, 1, 8);
    put_message(&model, 7, &graph);
    put_message(&model, 8, &opset);
    char *path = path_join(f->a, f->dir, "branches.onnx");
    Diag d = {0};
    assert_int_equal(file_write(&d, path, model.at, model.size), ST_OK);
    text_free(&model);
    return path;
}

/* Values of both w in the order of the file, by the names that the import gives them. */
static void read_branches(File *f, const char *path, const char *name[2], float w[2][2])
{
    Diag d = {0};
    Model *m;
    ModelOptions o = {.path = path};
    int n = 0;
    if (model_import(&d, f->a, &o, &m) != ST_OK)
        fail_msg("%s", d.message);
    for (int v = 0; v < m->value.count; v++)
        if (m->value.at[v].kind == VALUE_INITIALIZER && m->value.at[v].dtype == FERRY_F32) {
            assert_true(n < 2);
            memcpy(w[n], m->value.at[v].data, sizeof w[n]);
            name[n++] = m->value.at[v].name;
        }
    assert_int_equal(n, 2);
    model_close(m);
}

static void test_branches(void **state)
{
    (void)state;
    File f = file_open();
    Diag d;
    ExportReport r;
    const char *name[2];
    float w[2][2];
    f.model = branches(&f);
    read_branches(&f, f.model, name, w);
    assert_true(w[0][0] == 1 && w[1][1] == 4 && strcmp(name[0], name[1]) != 0);
    ferry_tensor t = tensor_f64(NEW, 1, 2, 0);
    const ExportWeight one = {name[0], &t, false}, two[] = {one, {name[1], &t, false}};
    if (run(&f, &d, &one, 1, EXPORT_INLINE_BYTES, &r) != ST_OK)
        fail_msg("%s", d.message);
    assert_int_equal(r.changed, 1);
    const char *again[2];
    read_branches(&f, f.out, again, w);
    assert_string_equal(again[0], name[0]);
    assert_true(w[0][0] == 10 && w[0][1] == 20 && w[1][0] == 3 && w[1][1] == 4);
    assert_int_equal(run(&f, &d, two, 2, EXPORT_INLINE_BYTES, &r), ST_OK);
    read_branches(&f, f.out, again, w);
    assert_true(w[0][0] == 10 && w[0][1] == 20 && w[1][0] == 10 && w[1][1] == 20);
    assert_int_equal(run(&f, &d, &(ExportWeight){"w", &t, false}, 1, EXPORT_INLINE_BYTES, &r), ST_MODEL);
    assert_non_null(strstr(d.message, "no initializer \"w\""));
    file_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_storage), cmocka_unit_test(test_same_values),
                                       cmocka_unit_test(test_refused), cmocka_unit_test(test_branches)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
