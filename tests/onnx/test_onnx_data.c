/* test_onnx_data.c - the operator test data of the ONNX project (Debian package libonnx-testdata) run on the host backend.
 *
 *   test_onnx_data DATA LIST              every case of DATA/node; LIST names the cases that are known not to pass
 *   test_onnx_data DATA LIST CASE...      these cases only, with their failures
 *   test_onnx_data --list DATA LIST       prints a LIST made anew from what happens
 *
 * A case is a folder with model.onnx and test_data_set_N/input_K.pb and output_K.pb, each a TensorProto. It passes when every
 * output has the type and shape of its file and its values: floating ones within rtol 1e-3 and atol 1e-7, as the data's own runner
 * compares them, all others exactly. The test fails when a case of LIST passes, when one that is not in it does not, and
 * when LIST names a case that is not there. Each case runs in a child with a time limit: a crash is its failure alone. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "graph/exec.h"
#include "graph/fold.h"
#include "graph/onnx_wire.h"

enum { SECONDS = 20, TEXT = 600, PASSED = 0, FAILED = 1 };

/* ---- one case, in the child ------------------------------------------------------------------------------------------ */

static int say(char *why, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int say(char *why, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, TEXT, format, args);
    va_end(args);
    return FAILED;
}

/* numpy's allclose: |got - want| <= atol + rtol * |want|, equal infinities, NaN where NaN. */
static bool close_enough(double got, double want)
{
    if (isnan(want) || isinf(want))
        return isnan(want) ? isnan(got) : got == want;
    return fabs(got - want) <= 1e-7 + 1e-3 * fabs(want);
}

static int compare(const ferry_tensor *got, const Value *want, int k, char *why)
{
    if (got->dtype != want->dtype)
        return say(why, "output %d is %s, expected %s", k, ferry_dtype_name(got->dtype), ferry_dtype_name(want->dtype));
    bool same = got->rank == want->rank;
    for (int i = 0; i < want->rank && same; i++)
        same = got->dim[i] == want->dim[i];
    if (!same)
        return say(why, "output %d has another shape", k);
    for (int64_t i = 0, n = value_count(want); i < n; i++) {
        bool ok;
        if (dtype_is_float(want->dtype)) {
            double a = num_real(got->dtype, got->data, i), b = num_real(want->dtype, want->data, i);
            ok = close_enough(a, b);
            if (!ok)
                return say(why, "output %d, element %lld is %.9g, expected %.9g", k, (long long)i, a, b);
        } else {
            int64_t a = num_int(got->dtype, got->data, i), b = num_int(want->dtype, want->data, i);
            if (a != b)
                return say(why, "output %d, element %lld is %lld, expected %lld", k, (long long)i, (long long)a,
                           (long long)b);
        }
    }
    return PASSED;
}

/* The decoded data may lie in the bytes: they are kept in the arena. */
static Status read_tensor(Diag *d, Model *m, const char *path, Value *out)
{
    uint8_t *bytes, *kept;
    int64_t size;
    TRY(file_read(d, path, (int64_t)1 << 28, &bytes, &size));
    kept = arena_alloc(m->arena, (size_t)size, 1);
    if (kept != NULL && size > 0)
        memcpy(kept, bytes, (size_t)size);
    base_free(bytes);
    return kept != NULL ? tensor_decode(d, m, path, kept, (size_t)size, false, out) : diag_oom(d);
}

/* The data has numbers of type bf16 as u16 with the same bits. */
static ferry_dtype bits_type(const Value *v, ferry_dtype wanted)
{
    return v->dtype == FERRY_U16 && wanted == FERRY_BF16 ? FERRY_BF16 : v->dtype;
}

static int run_set(Arena *a, const char *model_path, const char *dir, char *why)
{
    Diag d = {.quiet = true};
    Model names = {.arena = a, .path = dir}, *m;
    ModelOptions options = {.path = model_path, .precision = FERRY_DTYPE_COUNT};
    /* the files are numbered as the model's inputs are: a first import tells their names */
    if (model_import(&d, a, &options, &m) != ST_OK)
        return say(why, "%s", d.message);
    ferry_tensor *feed = ARENA_NEW(a, ferry_tensor, m->n_input + 1);
    int n_feed = 0;
    for (int i = 0; i < m->n_input; i++) {
        const char *path = arena_printf(a, "%s/input_%d.pb", dir, i);
        Value v = {0};
        if (!file_exists(path))
            continue;
        if (read_tensor(&d, &names, path, &v) != ST_OK)
            return say(why, "%s", d.message);
        v.dtype = bits_type(&v, m->value.at[m->input[i]].dtype);
        feed[n_feed] = (ferry_tensor){m->value.at[m->input[i]].name, v.dtype, v.rank, {0}, (void *)v.data};
        memcpy(feed[n_feed++].dim, v.dim, sizeof v.dim);
    }
    Graph *g;
    if (forward_from_options(&d, a, &options, n_feed, feed, &m, &g) != ST_OK)
        return say(why, "%s", d.message);
    ferry_tensor *out = ARENA_NEW(a, ferry_tensor, g->n_output + 1);
    if (graph_execute(&d, a, g, out) != ST_OK)
        return say(why, "%s", d.message);
    for (int i = 0; i < g->n_output; i++) {
        Value want = {0};
        if (read_tensor(&d, &names, arena_printf(a, "%s/output_%d.pb", dir, i), &want) != ST_OK)
            return say(why, "%s", d.message);
        want.dtype = bits_type(&want, out[i].dtype);
        if (compare(&out[i], &want, i, why) != PASSED)
            return FAILED;
    }
    graph_close(g);
    model_close(m);
    return PASSED;
}

static int run_case(const char *dir, char *why)
{
    Arena *a = arena_open();
    int result = PASSED, sets = 0;
    for (; result == PASSED; sets++) {
        const char *set = arena_printf(a, "%s/test_data_set_%d", dir, sets);
        if (!file_exists(set))
            break;
        result = run_set(a, arena_printf(a, "%s/model.onnx", dir), set, why);
    }
    arena_close(a);
    return sets > 0 ? result : say(why, "there is no test_data_set_0");
}

/* ---- children -------------------------------------------------------------------------------------------------------- */

static int fork_case(const char *dir, char *why)
{
    int pipes[2], status = 0;
    why[0] = '\0';
    if (pipe(pipes) != 0)
        return say(why, "pipe: %s", strerror(errno));
    fflush(stdout);
    pid_t child = fork();
    if (child < 0)
        return say(why, "fork: %s", strerror(errno));
    if (child == 0) {
        char text[TEXT] = "";
        close(pipes[0]);
        int result = run_case(dir, text);
        ssize_t written = write(pipes[1], text, strlen(text));
        _exit(written < 0 ? FAILED : result);
    }
    close(pipes[1]);
    /* the pipe closes when the child is done; until then nothing but its message comes */
    struct pollfd fd = {.fd = pipes[0], .events = POLLIN};
    size_t size = 0;
    bool late = false;
    for (;;) {
        late = poll(&fd, 1, SECONDS * 1000) == 0;
        ssize_t n = late ? 0 : read(pipes[0], why + size, TEXT - 1 - size);
        if (n <= 0)
            break;
        size += (size_t)n;
    }
    why[size] = '\0';
    close(pipes[0]);
    if (late)
        kill(child, SIGKILL);
    waitpid(child, &status, 0);
    if (late)
        return say(why, "takes more than %d seconds", (int)SECONDS);
    if (WIFSIGNALED(status))
        return say(why, "crashes: signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

/* ---- the list -------------------------------------------------------------------------------------------------------- */

typedef struct Known {
    char *name, *reason;
    bool seen;
} Known;
typedef VEC(Known) List;

/* "name: reason" a line; '#' begins a comment. */
static bool read_list(Arena *a, const char *path, List *out)
{
    Diag d = {.quiet = true};
    uint8_t *bytes;
    int64_t size;
    if (file_read(&d, path, 1 << 22, &bytes, &size) != ST_OK) {
        fprintf(stderr, "%s\n", d.message);
        return false;
    }
    char *text = arena_strdup(a, (char *)bytes), *rest = text;
    base_free(bytes);
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        if (line[0] == '#' || line[0] == '\0')
            continue;
        char *colon = strchr(line, ':');
        Known *slot = colon != NULL && colon[1] == ' ' ? VEC_PUSH(out) : NULL;
        if (slot == NULL) {
            fprintf(stderr, "%s: '%s' is not of the form CASE: REASON\n", path, line);
            return false;
        }
        *colon = '\0';
        *slot = (Known){line, colon + 2, false};
    }
    return true;
}

static Known *find_known(List *list, const char *name)
{
    for (int i = 0; i < list->count; i++)
        if (strcmp(list->at[i].name, name) == 0)
            return &list->at[i];
    return NULL;
}

/* A few words instead of an error that names paths. */
static const char *short_reason(Arena *a, const char *why)
{
    const char *at;
    char word[64];
    if (((at = strstr(why, "operator ")) != NULL && sscanf(at, "operator %63s", word) == 1 &&
         strstr(why, "not supported") != NULL))
        return arena_printf(a, "%s is not supported%s", word, strstr(why, "at this opset") ? " at this opset" : "");
    if (strstr(why, "element type") != NULL && (at = strstr(why, "element type ")) != NULL &&
        sscanf(at, "element type %63s", word) == 1)
        return arena_printf(a, "elements of type %s", word);
    if (strstr(why, "is not a tensor") != NULL)
        return "an input that is no tensor";
    const char *colon = strrchr(why, ':');
    return colon != NULL && colon[1] == ' ' ? colon + 2 : why;
}

/* ---- all cases ------------------------------------------------------------------------------------------------------- */

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_case(const struct dirent *e)
{
    return strncmp(e->d_name, "test_", 5) == 0;
}

typedef struct Totals {
    int passed, known, wrong;
} Totals;

static void one(Arena *a, const char *data, const char *name, List *list, bool print, Totals *t)
{
    char why[TEXT];
    bool passed = fork_case(arena_printf(a, "%s/node/%s", data, name), why) == PASSED;
    Known *known = find_known(list, name);
    if (known != NULL)
        known->seen = true;
    t->passed += passed;
    t->known += !passed && known != NULL;
    if (print) {
        if (!passed)
            printf("%s: %s\n", name, short_reason(a, why));
        return;
    }
    if (passed == (known != NULL))
        t->wrong++;
    if (passed && known != NULL)
        printf("%s passes, but is listed: %s\n", name, known->reason);
    if (!passed && known == NULL)
        printf("%s: %s\n", name, why);
}

int main(int argc, char **argv)
{
    bool print = argc > 1 && strcmp(argv[1], "--list") == 0;
    argv += print;
    argc -= print;
    if (argc < 3) {
        fprintf(stderr, "usage: test_onnx_data [--list] DATA LIST [CASE...]\n");
        return 2;
    }
    Arena *a = arena_open();
    List list = {0};
    Totals t = {0};
    if (!print && !read_list(a, argv[2], &list))
        return 1;
    struct dirent **entry;
    int count = argc > 3 ? 0 : scandir(arena_printf(a, "%s/node", argv[1]), &entry, is_case, by_name);
    if (argc <= 3 && count <= 0) {
        fprintf(stderr, "%s: the ONNX test data is not there; install the package libonnx-testdata\n", argv[1]);
        return 1;
    }
    for (int i = 3; i < argc; i++) {
        char why[TEXT];
        bool passed = fork_case(arena_printf(a, "%s/node/%s", argv[1], argv[i]), why) == PASSED;
        printf("%s: %s\n", argv[i], passed ? "passes" : why);
        t.wrong += !passed;
    }
    for (int i = 0; i < count; i++) {
        one(a, argv[1], entry[i]->d_name, &list, print, &t);
        free(entry[i]);
    }
    if (count > 0)
        free(entry);
    for (int i = 0; i < list.count && count > 0; i++)
        if (!list.at[i].seen) {
            printf("%s is listed, but there is no such case\n", list.at[i].name);
            t.wrong++;
        }
    if (!print && count > 0)
        printf("%d cases: %d pass, %d do not and are listed, %d are not as listed\n", count, t.passed, t.known, t.wrong);
    VEC_FREE(&list);
    arena_close(a);
    return t.wrong > 0;
}
