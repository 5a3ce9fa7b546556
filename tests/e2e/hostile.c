/* hostile.c - for hostile.sh: models that mean harm, and a watch over the program that reads them.
 *
 *   hostile write             writes NAME.onnx for each model of the table into this folder, and prints "NAME PATTERN"
 * a line, where PATTERN is an extended regular expression for the error message hostile watch SECONDS MIB COMMAND...
 * runs the command; says on standard error when it ends by a signal, takes more seconds or more memory, and returns 99
 * then, else the command's exit status
 *
 * A model is written field by field, as nothing that writes ONNX would write it. */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- protobuf
 * -------------------------------------------------------------------------------------------------------- */

typedef struct Bytes {
    size_t size, capacity;
    uint8_t *at;
} Bytes;

static void put(Bytes *b, const void *data, size_t size)
{
    if (b->size + size >= b->capacity) {
        b->capacity = 2 * (b->size + size) + 64;
        b->at = realloc(b->at, b->capacity);
    }
    if (b->at == NULL)
        exit(98);
    if (size > 0)
        memcpy(b->at + b->size, data, size);
    b->size += size;
}

static void put_number(Bytes *b, uint64_t x)
{
    do {
        uint8_t byte = (uint8_t)((x & 0x7f) | (x > 0x7f ? 0x80 : 0));
        put(b, &byte, 1);
        x >>= 7;
    } while (x > 0);
}

static void put_int(Bytes *b, int field, int64_t x)
{
    put_number(b, (uint64_t)field << 3);
    put_number(b, (uint64_t)x);
}

static void put_data(Bytes *b, int field, const void *data, size_t size)
{
    put_number(b, (uint64_t)field << 3 | 2);
    put_number(b, size);
    put(b, data, size);
}

static void put_text(Bytes *b, int field, const char *s)
{
    put_data(b, field, s, strlen(s));
}

static void put_message(Bytes *b, int field, Bytes sub)
{
    put_data(b, field, sub.at, sub.size);
    free(sub.at);
}

static void put_names(Bytes *b, int field, const char *names)
{
    while (names[0] != '\0') {
        size_t n = strcspn(names, ",");
        put_data(b, field, names, n);
        names += n + (names[n] == ',');
    }
}

enum { F32 = 1, I64 = 7, TEXT = 8, BOOL = 9 };

static Bytes tensor(const char *name, int type, int rank, const int64_t *dim, const void *raw, size_t size)
{
    Bytes t = {0};
    for (int i = 0; i < rank; i++)
        put_int(&t, 1, dim[i]);
    put_int(&t, 2, type);
    put_text(&t, 8, name);
    if (raw != NULL)
        put_data(&t, 9, raw, size);
    return t;
}

static Bytes whole(const char *name, int count, const int64_t *x)
{
    int64_t dim = count;
    return tensor(name, I64, 1, &dim, x, (size_t)count * 8);
}

static Bytes input(const char *name, int type, int rank, const int64_t *dim)
{
    Bytes shape = {0}, sized = {0}, kind = {0}, v = {0};
    for (int i = 0; i < rank; i++) {
        Bytes d = {0};
        put_int(&d, 1, dim[i]);
        put_message(&shape, 1, d);
    }
    put_int(&sized, 1, type);
    put_message(&sized, 2, shape);
    put_message(&kind, 1, sized);
    put_text(&v, 1, name);
    put_message(&v, 2, kind);
    return v;
}

static Bytes named(const char *name)
{
    Bytes v = {0};
    put_text(&v, 1, name);
    return v;
}

static Bytes node(const char *op, const char *in, const char *out)
{
    Bytes n = {0};
    put_names(&n, 1, in);
    put_names(&n, 2, out);
    put_text(&n, 3, "victim");
    put_text(&n, 4, op);
    return n;
}

static Bytes attr_int(const char *name, int64_t x)
{
    Bytes a = {0};
    put_text(&a, 1, name);
    put_int(&a, 3, x);
    put_int(&a, 20, 2);
    return a;
}

static Bytes attr_ints(const char *name, int count, const int64_t *x)
{
    Bytes a = {0};
    put_text(&a, 1, name);
    for (int i = 0; i < count; i++)
        put_int(&a, 8, x[i]);
    put_int(&a, 20, 7);
    return a;
}

static Bytes attr_text(const char *name, const char *x)
{
    Bytes a = {0};
    put_text(&a, 1, name);
    put_text(&a, 4, x);
    put_int(&a, 20, 3);
    return a;
}

static Bytes model_of(Bytes graph, int64_t opset)
{
    Bytes m = {0}, o = {0};
    put_text(&o, 1, "");
    put_int(&o, 2, opset);
    put_int(&m, 1, 8);
    put_message(&m, 7, graph);
    put_message(&m, 8, o);
    return m;
}

static void save(const char *name, Bytes model, const char *pattern)
{
    char path[64];
    snprintf(path, sizeof(path), "%s.onnx", name);
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(model.at, 1, model.size, f) != model.size || fclose(f) != 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(98);
    }
    free(model.at);
    printf("%s %s\n", name, pattern);
}

/* ---- graphs
 * ---------------------------------------------------------------------------------------------------------- */

/* y = op(x, ..), x f32 [2, 3] and a parameter p f32 [3] */
static void start(Bytes *g)
{
    const int64_t xs[] = {2, 3}, ps[] = {3};
    const float data[] = {1, 2, 3};
    *g = (Bytes){0};
    put_message(g, 11, input("x", F32, 2, xs));
    put_message(g, 5, tensor("p", F32, 1, ps, data, sizeof(data)));
}

static void finish(const char *name, Bytes *g, int64_t opset, const char *pattern)
{
    put_message(g, 12, named("y"));
    save(name, model_of(*g, opset), pattern);
}

/* One node on x and constants; `whole` makes input i0, or with `real` one scalar f32 s0. */
typedef struct OneNode {
    const char *name, *op, *in, *pattern;
    int64_t opset;
    int n_attr;
    struct {
        const char *name;
        int count; /* 0: one number, -1: text */
        int64_t x[4];
        const char *text;
    } attr[3];
    int n_whole;
    int64_t whole[8];
} OneNode;

static const OneNode nodes[] = {
    {"reshape-huge", "Reshape", "x,i0", "Reshape", 17, 0, {{0}}, 2, {1000000000, 1000000000}},
    {"reshape-overflow", "Reshape", "x,i0", "Reshape", 17, 0, {{0}}, 3, {INT64_MAX, INT64_MAX, 6}},
    {"reshape-negative", "Reshape", "x,i0", "Reshape", 17, 0, {{0}}, 2, {-7, 2}},
    {"reshape-two-open", "Reshape", "x,i0", "Reshape", 17, 0, {{0}}, 2, {-1, -1}},
    {"reshape-open-of-zero", "Reshape", "x,i0", "Reshape", 17, 1, {{"allowzero", 0, {1}, NULL}}, 2, {0, -1}},
    {"expand-huge", "Expand", "x,i0", "victim|more bytes", 17, 0, {{0}}, 4, {INT64_MAX, INT64_MAX, 2, 3}},
    {"tile-huge", "Tile", "x,i0", "victim|more bytes", 17, 0, {{0}}, 2, {INT64_MAX, INT64_MAX}},
    {"tile-negative", "Tile", "x,i0", "victim", 17, 0, {{0}}, 2, {-1, 2}},
    {"pad-huge", "Pad", "x,i0", "victim|more bytes", 17, 0, {{0}}, 4, {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX}},
    {"pad-everything-off", "Pad", "x,i0", "victim", 17, 0, {{0}}, 4, {-9, 0, 0, INT64_MIN}},
    {"pad-reflect-far", "Pad", "x,i0", "victim", 17, 1, {{"mode", -1, {0}, "reflect"}}, 4, {0, 900, 0, 900}},
    {"constant-huge", "ConstantOfShape", "i0", "victim|more bytes|limited", 17, 0, {{0}}, 2, {2000000000, 2000000000}},
    {"transpose-twice", "Transpose", "x", "perm", 17, 1, {{"perm", 2, {0, 0}, NULL}}, 0, {0}},
    {"transpose-outside", "Transpose", "x", "perm", 17, 1, {{"perm", 2, {0, 900000}, NULL}}, 0, {0}},
    {"softmax-axis", "Softmax", "x", "axis", 17, 1, {{"axis", 0, {INT64_MIN}, NULL}}, 0, {0}},
    {"concat-axis", "Concat", "x,x", "axis", 17, 1, {{"axis", 0, {INT64_MAX}, NULL}}, 0, {0}},
    {"gather-axis", "Gather", "x,i0", "axis", 17, 1, {{"axis", 0, {INT64_MIN}, NULL}}, 1, {0}},
    {"split-negative", "Split", "x,i0", "victim", 17, 1, {{"axis", 0, {1}, NULL}}, 2, {-1, 4}},
    {"slice-step-zero", "Slice", "x,i0,i0,i0,i0", "victim", 17, 0, {{0}}, 1, {0}},
    {"topk-huge", "TopK", "x,i0", "victim", 17, 0, {{0}}, 1, {INT64_MAX}},
    {"onehot-huge", "OneHot", "i0,i0,p", "victim", 17, 0, {{0}}, 1, {INT64_MAX}},
    {"squeeze-outside", "Squeeze", "x,i0", "victim", 17, 0, {{0}}, 1, {INT64_MIN}},
    {"unsqueeze-many", "Unsqueeze", "x,i0", "victim|dimensions", 17, 0, {{0}}, 8, {0, 1, 2, 3, 4, 5, 6, 7}},
    {"reduce-axes", "ReduceSum", "x,i0", "victim", 17, 0, {{0}}, 2, {1, -1}},
    {"cumsum-axis", "CumSum", "x,i0", "victim", 17, 0, {{0}}, 1, {99}},
    {"einsum-nonsense", "Einsum", "x,x", "victim", 17, 1, {{"equation", -1, {0}, "....ij,->->z9"}}, 0, {0}},
    {"einsum-long",
     "Einsum",
     "x",
     "victim",
     17,
     1,
     {{"equation", -1, {0}, "abcdefghijklmnop->ponmlkjihgfedcba"}},
     0,
     {0}},
    {"blocks-of-zero", "DepthToSpace", "x", "victim", 17, 1, {{"blocksize", 0, {0}, NULL}}, 0, {0}},
    {"blocks-overflow", "SpaceToDepth", "x", "victim", 17, 1, {{"blocksize", 0, {INT64_MIN}, NULL}}, 0, {0}},
    {"conv-rank", "Conv", "x,x", "victim", 17, 0, {{0}}, 0, {0}},
    {"pool-kernel-zero", "MaxPool", "x", "victim", 17, 1, {{"kernel_shape", 1, {0}, NULL}}, 0, {0}},
    {"heads-of-zero",
     "Attention",
     "x,x,x",
     "victim",
     23,
     2,
     {{"q_num_heads", 0, {0}, NULL}, {"kv_num_heads", 0, {0}, NULL}},
     0,
     {0}},
    {"groups-of-zero", "GroupNormalization", "x,p,p", "victim", 18, 1, {{"num_groups", 0, {0}, NULL}}, 0, {0}},
    {"cast-to-text", "Cast", "x", "cast|type", 17, 1, {{"to", 0, {TEXT}, NULL}}, 0, {0}},
    {"cast-to-nothing", "Cast", "x", "cast|type", 17, 1, {{"to", 0, {12345}, NULL}}, 0, {0}},
    {"product-of-wholes", "MatMul", "x,i0", "victim", 17, 0, {{0}}, 3, {1, 2, 3}},
    {"missing-input", "Add", "x,nowhere", "nowhere", 17, 0, {{0}}, 0, {0}},
    {"missing-argument", "Add", "x", "victim", 17, 0, {{0}}, 0, {0}},
    {"many-arguments", "Neg", "x,x,x", "victim", 17, 0, {{0}}, 0, {0}},
    {"own-input", "Add", "x,y", "cycle", 17, 0, {{0}}, 0, {0}},
    {"unknown-operator", "Frobnicate", "x", "Frobnicate", 17, 0, {{0}}, 0, {0}},
    {"attribute-of-wrong-type", "Transpose", "x", "perm", 17, 1, {{"perm", -1, {0}, "abc"}}, 0, {0}},
    {"opset-99", "Neg", "x", "opset 99", 99, 0, {{0}}, 0, {0}},
    {"opset-negative", "Neg", "x", "opset", -5, 0, {{0}}, 0, {0}},
    {"broadcast", "Add", "x,i0", "victim", 17, 0, {{0}}, 2, {1, 2}},
};

static void write_nodes(void)
{
    for (size_t k = 0; k < sizeof(nodes) / sizeof(nodes[0]); k++) {
        const OneNode *o = &nodes[k];
        Bytes g, n = node(o->op, o->in, "y");
        start(&g);
        for (int i = 0; i < o->n_attr; i++)
            put_message(&n, 5,
                        o->attr[i].count < 0    ? attr_text(o->attr[i].name, o->attr[i].text)
                        : o->attr[i].count == 0 ? attr_int(o->attr[i].name, o->attr[i].x[0])
                                                : attr_ints(o->attr[i].name, o->attr[i].count, o->attr[i].x));
        if (o->n_whole > 0)
            put_message(&g, 5, whole("i0", o->n_whole, o->whole));
        put_message(&g, 1, n);
        finish(o->name, &g, o->opset, o->pattern);
    }
}

/* Weights p [2] of which only the description is wrong. */
static void write_weights(void)
{
    const float two[] = {1, 2};
    static const struct {
        const char *name, *pattern;
        int type, rank;
        int64_t dim[9];
        size_t bytes;
    } row[] = {
        {"raw-short", "\"?w\"?.*bytes", F32, 1, {2}, 4},
        {"raw-none", "w", F32, 1, {2}, 0},
        {"raw-long", "w", F32, 1, {1}, 8},
        {"dim-negative", "w", F32, 1, {-2}, 8},
        {"dim-least", "w", F32, 2, {INT64_MIN, INT64_MIN}, 8},
        {"dims-of-a-billion", "w", F32, 2, {1000000000, 1000000000}, 8},
        {"dims-overflow", "w", F32, 3, {INT64_MAX, INT64_MAX, 2}, 8},
        {"dims-overflow-to-two", "w", F32, 2, {INT64_MAX / 2 + 2, 2}, 8}, /* the product is 2 in 64 bits */
        {"nine-dims", "w|dimensions", F32, 9, {1, 1, 1, 1, 1, 1, 1, 1, 2}, 8},
        {"weights-of-text", "w|type", TEXT, 1, {2}, 8},
        {"weights-of-nothing", "w|type", 0, 1, {2}, 8},
        {"weights-of-type-77", "w|type", 77, 1, {2}, 8},
    };
    for (size_t k = 0; k < sizeof(row) / sizeof(row[0]); k++) {
        Bytes g;
        start(&g);
        put_message(&g, 5,
                    tensor("w", row[k].type, row[k].rank, row[k].dim, row[k].bytes > 0 ? two : NULL, row[k].bytes));
        put_message(&g, 1, node("Mul", "x,w", "y"));
        finish(row[k].name, &g, 17, row[k].pattern);
    }
}

static void write_graphs(void)
{
    Bytes g, n;
    const int64_t two[] = {2, 3}, huge[] = {1000000000, 1000000000, 1000000000}, least[] = {INT64_MIN, 3};
    g = (Bytes){0};
    put_message(&g, 11, input("x", F32, 3, huge));
    put_message(&g, 1, node("Neg", "x", "y"));
    finish("input-of-a-billion", &g, 17, "x");
    g = (Bytes){0};
    put_message(&g, 11, input("x", F32, 2, least));
    put_message(&g, 1, node("Neg", "x", "y"));
    finish("input-negative", &g, 17, "x");
    start(&g);
    put_message(&g, 1, node("Neg", "a", "b"));
    put_message(&g, 1, node("Neg", "b", "c"));
    put_message(&g, 1, node("Add", "c,x", "a"));
    put_message(&g, 1, node("Neg", "a", "y"));
    finish("cycle", &g, 17, "cycle");
    start(&g);
    put_message(&g, 1, node("Neg", "x", "y"));
    put_message(&g, 1, node("Abs", "x", "y"));
    finish("two-outputs-of-a-name", &g, 17, "twice");
    start(&g);
    put_message(&g, 5, whole("p", 2, two));
    put_message(&g, 1, node("Add", "x,p", "y"));
    finish("two-weights-of-a-name", &g, 17, "twice|two|\"p\"");
    start(&g);
    put_message(&g, 11, input("x", F32, 2, two));
    put_message(&g, 1, node("Neg", "x", "y"));
    finish("two-inputs-of-a-name", &g, 17, "twice|two|\"x\"");
    start(&g);
    put_message(&g, 1, node("Neg", "x", "z"));
    finish("output-of-nothing", &g, 17, "\"y\"");
    start(&g);
    n = node("Neg", "x", "y");
    put_text(&n, 7, "com.example.\033[31m\nevil"); /* a message must not act on the terminal */
    put_message(&g, 1, n);
    finish("foreign-domain", &g, 17, "com.example");
    /* an If in an If in an If */
    for (int deep = 50; deep <= 20000; deep *= 20) {
        Bytes inner = {0};
        put_message(&inner, 1, node("Neg", "x", "y"));
        put_message(&inner, 12, named("y"));
        for (int i = 0; i < deep; i++) {
            Bytes branch = {0}, more = {0};
            n = node("If", "c", "y");
            put_text(&branch, 1, "then_branch");
            put_message(&branch, 6, inner);
            put_int(&branch, 20, 5);
            put_message(&n, 5, branch);
            put_message(&more, 1, n);
            put_message(&more, 12, named("y"));
            inner = more;
        }
        start(&g);
        put_message(&g, 11, input("c", BOOL, 0, NULL));
        put(&g, inner.at, inner.size);
        free(inner.at);
        save(deep == 50     ? "nested-50"
             : deep == 1000 ? "nested-1000"
                            : "nested-20000",
             model_of(g, 17), "nested|If|branch|deep");
    }
}

/* Weights in other files; hostile.sh makes those. */
static void write_external(void)
{
    static const struct {
        const char *name, *location, *offset, *length, *pattern;
        int64_t count;
    } row[] = {
        {"outside-absolute", "/etc/passwd", NULL, NULL, "below the model", 2},
        {"outside-up", "../secret.bin", NULL, NULL, "below the model", 2},
        {"outside-down-and-up", "sub/../../secret.bin", NULL, NULL, "below the model", 2},
        {"outside-link", "link.bin", NULL, NULL, "leaves", 2},
        {"outside-linked-folder", "linked/secret.bin", NULL, NULL, "leaves", 2},
        {"outside-hard-link", "hard.bin", NULL, NULL, "hard link", 2},
        {"link-to-itself", "loop.bin", NULL, NULL, "loop", 2},
        {"location-empty", "", NULL, NULL, "location|below", 2},
        {"location-of-folder", "sub", NULL, NULL, "regular", 2},
        {"location-of-fifo", "fifo.bin", NULL, NULL, "regular", 2},
        {"beyond-the-end", "small.bin", "4", NULL, "not in", 2},
        {"offset-overflow", "small.bin", "9223372036854775807", NULL, "not in", 2},
        {"offset-negative", "small.bin", "-8", NULL, "size", 2},
        {"offset-of-words", "small.bin", "here", NULL, "size", 2},
        {"length-differs", "small.bin", NULL, "4", "bytes", 2},
        {"claims-more-than-2-GiB", "sparse.bin", NULL, NULL, "not in", 1073741824},
        {"claims-more-behind-2-GiB", "sparse.bin", "2147483644", NULL, "not in", 2},
    };
    for (size_t k = 0; k < sizeof(row) / sizeof(row[0]); k++) {
        const char *entry[][2] = {{"location", row[k].location}, {"offset", row[k].offset}, {"length", row[k].length}};
        Bytes g, t = tensor("w", F32, 1, &row[k].count, NULL, 0);
        for (int i = 0; i < 3; i++) {
            Bytes e = {0};
            if (entry[i][1] == NULL)
                continue;
            put_text(&e, 1, entry[i][0]);
            put_text(&e, 2, entry[i][1]);
            put_message(&t, 13, e);
        }
        put_int(&t, 14, 1);
        start(&g);
        put_message(&g, 5, t);
        put_message(&g, 1, node("ReduceSum", "w", "s"));
        put_message(&g, 1, node("Mul", "x,s", "y"));
        finish(row[k].name, &g, 17, row[k].pattern);
    }
}

/* Bytes that are hardly a message. */
static void write_bytes(void)
{
    Bytes b = {0};
    put_number(&b, 7 << 3 | 2);
    put_number(&b, UINT64_MAX);
    save("length-of-2-to-64", b, "byte");
    b = (Bytes){0};
    put_number(&b, 7 << 3 | 2);
    put_number(&b, (uint64_t)1 << 31);
    put_text(&b, 1, "x");
    save("length-beyond-the-end", b, "byte");
    b = (Bytes){0};
    for (int i = 0; i < 100000; i++)
        put(&b, "\x3b", 1); /* groups that open and never close */
    save("open-groups", b, "byte");
    b = (Bytes){0};
    for (int i = 0; i < 1000000; i++)
        put(&b, "\xff", 1);
    save("endless-number", b, "byte");
    /* an empty node costs 2 bytes in the file and a hundred in memory */
    Bytes g = {0};
    for (int i = 0; i < 4000000; i++)
        put(&g, "\x0a\x00", 2);
    save("four-million-nodes", model_of(g, 17), "nodes|memory|operator");
}

/* ---- the watch
 * ------------------------------------------------------------------------------------------------------- */

static int watch(double seconds, long mib, char **command)
{
    int status = 0;
    struct rusage used;
    pid_t child = fork();
    if (child < 0)
        return 98;
    if (child == 0) {
        alarm((unsigned)(seconds + 0.999)); /* stays over exec: SIGALRM ends it */
        execvp(command[0], command);
        fprintf(stderr, "%s: %s\n", command[0], strerror(errno));
        _exit(98);
    }
    if (wait4(child, &status, 0, &used) != child)
        return 98;
    if (WIFSIGNALED(status)) {
        fprintf(stderr, WTERMSIG(status) == SIGALRM ? "takes more than %.0f seconds\n" : "crashes\n", seconds);
        return 99;
    }
    if (used.ru_maxrss / 1024 > mib) {
        fprintf(stderr, "takes %ld MiB\n", used.ru_maxrss / 1024);
        return 99;
    }
    return WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
    if (argc > 4 && strcmp(argv[1], "watch") == 0)
        return watch(atof(argv[2]), atol(argv[3]), argv + 4);
    if (argc != 2 || strcmp(argv[1], "write") != 0) {
        fprintf(stderr, "usage: hostile write, hostile watch SECONDS MIB COMMAND...\n");
        return 2;
    }
    write_nodes();
    write_weights();
    write_graphs();
    write_external();
    write_bytes();
    return 0;
}
