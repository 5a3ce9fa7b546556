/* tiny.h - a small ONNX model with any names, written to a file, and the whole road from it to a schedule.
 *
 *     embedded[4, 8] = table[5, 8] gathered by ids[4];  scaled = embedded * constant[8]
 *     then for each layer  g[4, 8] = x * weight[8, 8] + bias[8];  t = tanh(g)
 *
 * names: ids, table, embedded, constant, scaled, then weight, bias, g, t of each layer. Nodes are named after their
 * outputs. */
#ifndef TESTS_CODEGEN_TINY_H
#define TESTS_CODEGEN_TINY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "codegen/codegen.h"

enum { TINY_FIRST = 5, TINY_LAYER = 4 };

/* ---- protobuf, as little of it as is needed ---------------------------------------------------------------------- */

static inline void pb_varint(Text *t, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        text_add_bytes(t, (char[]){(char)(v | 0x80)}, 1);
    text_add_bytes(t, (char[]){(char)v}, 1);
}

static inline void pb_int(Text *t, int field, uint64_t v)
{
    pb_varint(t, (uint64_t)field << 3);
    pb_varint(t, v);
}

static inline void pb_bytes(Text *t, int field, const void *bytes, size_t size)
{
    pb_varint(t, (uint64_t)field << 3 | 2);
    pb_varint(t, size);
    text_add_bytes(t, bytes, size);
}

static inline void pb_text(Text *t, int field, const char *s)
{
    pb_bytes(t, field, s, strlen(s));
}

static inline void pb_message(Text *t, int field, Text *inner) /* and frees inner */
{
    pb_bytes(t, field, inner->at ? inner->at : "", inner->size);
    text_free(inner);
}

/* A float TensorProto with values that no other tensor of the model has. */
static inline Text tiny_tensor(const char *name, int rank, const int64_t *dim, int seed)
{
    Text t = {0};
    int count = 1;
    for (int i = 0; i < rank; i++) {
        pb_int(&t, 1, (uint64_t)dim[i]);
        count *= (int)dim[i];
    }
    pb_int(&t, 2, 1);
    if (name)
        pb_text(&t, 8, name);
    float value[64];
    for (int i = 0; i < count; i++)
        value[i] = (float)((i * 37 + seed * 101) % 211 - 105) / 400;
    pb_bytes(&t, 9, value, (size_t)count * sizeof *value);
    return t;
}

static inline void tiny_node(Text *graph, const char *op, const char *name, const char *a, const char *b, const char *c,
                             Text *attribute)
{
    Text n = {0};
    const char *in[] = {a, b, c};
    for (int i = 0; i < 3; i++)
        if (in[i])
            pb_text(&n, 1, in[i]);
    pb_text(&n, 2, name);
    pb_text(&n, 3, name);
    pb_text(&n, 4, op);
    if (attribute)
        pb_message(&n, 5, attribute);
    pb_message(graph, 1, &n);
}

/* type: 1 float, 7 int64 */
static inline void tiny_info(Text *graph, int field, const char *name, int type, int rank, const int64_t *dim)
{
    Text shape = {0}, tensor = {0}, info = {0}, wrap = {0};
    for (int i = 0; i < rank; i++) {
        Text d = {0};
        pb_int(&d, 1, (uint64_t)dim[i]);
        pb_message(&shape, 1, &d);
    }
    pb_int(&tensor, 1, (uint64_t)type);
    pb_message(&tensor, 2, &shape);
    pb_message(&wrap, 1, &tensor);
    pb_text(&info, 1, name);
    pb_message(&info, 2, &wrap);
    pb_message(graph, field, &info);
}

static inline void tiny_write(const char *path, const char *const *name, int layers)
{
    Text model = {0}, graph = {0}, opset = {0}, t, attribute = {0};
    t = tiny_tensor(NULL, 1, (int64_t[]){8}, 90);
    pb_text(&attribute, 1, "value");
    pb_message(&attribute, 5, &t);
    pb_int(&attribute, 20, 4);
    tiny_node(&graph, "Gather", name[2], name[1], name[0], NULL, NULL);
    tiny_node(&graph, "Constant", name[3], NULL, NULL, NULL, &attribute);
    tiny_node(&graph, "Mul", name[4], name[2], name[3], NULL, NULL);
    const char *x = name[4];
    for (int i = 0; i < layers; i++) {
        const char *const *n = name + TINY_FIRST + TINY_LAYER * i;
        tiny_node(&graph, "Gemm", n[2], x, n[0], n[1], NULL);
        tiny_node(&graph, "Tanh", n[3], n[2], NULL, NULL, NULL);
        x = n[3];
    }
    pb_text(&graph, 2, "tiny");
    t = tiny_tensor(name[1], 2, (int64_t[]){5, 8}, 1);
    pb_message(&graph, 5, &t);
    for (int i = 0; i < layers; i++) {
        const char *const *n = name + TINY_FIRST + TINY_LAYER * i;
        t = tiny_tensor(n[0], 2, (int64_t[]){8, 8}, 10 + i);
        pb_message(&graph, 5, &t);
        t = tiny_tensor(n[1], 1, (int64_t[]){8}, 50 + i);
        pb_message(&graph, 5, &t);
    }
    tiny_info(&graph, 11, name[0], 7, 1, (int64_t[]){4});
    tiny_info(&graph, 12, x, 1, 2, (int64_t[]){4, 8});
    pb_int(&opset, 2, 17);
    pb_int(&model, 1, 8);
    pb_message(&model, 7, &graph);
    pb_message(&model, 8, &opset);
    Diag d = {0};
    assert_false(model.failed);
    assert_int_equal(file_write(&d, path, model.at, model.size), ST_OK);
    text_free(&model);
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

static inline char *tiny_dir(Arena *a)
{
    /* memory, where there is such a folder: every file is flushed to its disk */
    const char *root = access("/dev/shm", W_OK) == 0 ? "/dev/shm/" : P_tmpdir "/";
    char *dir = arena_printf(a, "%stest_codegen_XXXXXX", root);
    assert_non_null(mkdtemp(dir));
    return dir;
}

/* "command", with its output where the test's goes; true when it succeeded. */
static inline bool tiny_shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline bool tiny_shell(const char *format, ...)
{
    char command[2000];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(command, sizeof command, format, args);
    va_end(args);
    assert_true(n > 0 && n < (int)sizeof command);
    return system(command) == 0;
}

static inline void tiny_remove(const char *dir)
{
    assert_non_null(strstr(dir, "test_codegen_"));
    assert_true(tiny_shell("rm -rf %s", dir));
}

/* ---- the road ---------------------------------------------------------------------------------------------------- */

typedef struct Tiny {
    Model *model[2];
    Graph *graph[2]; /* as profiled and planned; as read from plan.yaml */
    Profile *profile;
    Plan *plan;
    StepList *steps;
} Tiny;

/* DIR/m.onnx to DIR/profile.yaml, DIR/plan.yaml and DIR/out. Call tiny_close in any case. */
static inline Status tiny_road(Diag *d, Arena *a, const char *dir, const char *loss, const char *algorithm,
                               const EmitOptions *emit_options, Tiny *t)
{
    *t = (Tiny){0};
    char *path = path_join(a, dir, "m.onnx"), *profile_path = path_join(a, dir, "profile.yaml");
    char *plan_path = path_join(a, dir, "plan.yaml"), *out = path_join(a, dir, "out");
    if (!path || !profile_path || !plan_path || !out)
        return diag_oom(d);
    ModelOptions mo = {.path = path, .loss = loss, .precision = FERRY_F32};
    TRY(graph_from_options(d, a, &mo, &t->model[0], &t->graph[0]));
    ProfileOptions po = {.device = "model:" FERRY_SOURCE_DIR "/tests/data/mixed-device.yaml"};
    Profile *profile;
    TRY(profile_make(d, a, t->graph[0], &mo, &po, &profile));
    TRY(profile_write(d, profile, profile_path, true));
    TRY(profile_read(d, a, profile_path, &profile));
    PlanOptions plan_options = {.algorithm = algorithm, .reserve_factor = -1};
    TRY(plan_make(d, a, t->graph[0], profile, &plan_options, &t->plan));
    TRY(plan_write(d, t->graph[0], profile, t->plan, plan_path, true));
    TRY(plan_read(d, a, plan_path, false, NULL, &t->plan, &t->profile, &t->model[1], &t->graph[1]));
    TRY(steps_build(d, a, t->graph[1], t->plan, &t->steps));
    TRY(steps_time(d, t->steps, t->profile));
    TRY(plan_verify(d, a, t->steps, &t->plan->layout));
    EmitOptions eo = *emit_options;
    eo.dir = out;
    eo.prefix = dir;
    return emit(d, a, t->profile, t->steps, &eo);
}

static inline void tiny_close(Tiny *t)
{
    for (int i = 0; i < 2; i++) {
        graph_close(t->graph[i]);
        model_close(t->model[i]);
    }
}

/* Warnings are errors under every compiler that is there; the headers are those of the source. */
static inline void tiny_compile(const char *dir)
{
    char here[1000];
    assert_non_null(getcwd(here, sizeof here));
    assert_true(tiny_shell("mkdir -p %s/include && ln -sfn %s/runtime %s/include/ferry", dir, FERRY_SOURCE_DIR, dir));
    static const char *const compilers[] = {"gcc -std=gnu17 -Wbidi-chars=any", "gcc -std=c17 -D_GNU_SOURCE -Wtrigraphs",
                                            "clang -std=c17 -D_GNU_SOURCE"};
    for (size_t i = 0; i < sizeof compilers / sizeof *compilers; i++) {
        if (i == 2 && !tiny_shell("command -v clang >%s/clang", dir)) {
            print_message("no clang here: compiled with gcc alone\n");
            continue;
        }
        for (int k = 0; k < 2; k++) {
            const char *file = k ? "trainer" : "schedule";
            if (!tiny_shell("%s -O1 -Wall -Wextra -Werror -fsyntax-only -I%s/include %s/out/%s.c", compilers[i], dir,
                            dir, file))
                fail_msg("%s.c does not compile with %s", file, compilers[i]);
        }
    }
    if (tiny_shell("command -v g++ >%s/cxx", dir) &&
        !tiny_shell("g++ -std=c++20 -Wall -Wextra -Werror -fsyntax-only -x c++ -I%s/include %s/out/schedule.h", dir,
                    dir))
        fail_msg("schedule.h is not C++");
}

#endif
