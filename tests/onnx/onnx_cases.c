/* onnx_cases.c - cases of the ONNX operator test data, each in a child, against a list of those that do not pass. */
#include "tests/onnx/onnx_cases.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "graph/onnx_wire.h"

enum { SECONDS = 20 };

int case_say(char *why, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, CASE_TEXT, format, args);
    va_end(args);
    return CASE_FAILED;
}

/* ---- files ----------------------------------------------------------------------------------------------------------- */

/* The decoded data may lie in the bytes: they are kept in the arena. */
Status case_tensor(Diag *d, Model *m, const char *path, Value *out)
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

ferry_dtype case_bits_type(const Value *v, ferry_dtype wanted)
{
    return v->dtype == FERRY_U16 && wanted == FERRY_BF16 ? FERRY_BF16 : v->dtype;
}

/* The files are numbered as the model's inputs are. */
int case_inputs(Arena *a, const Model *m, const char *set, ferry_tensor *feed, int *n_feed, char *why)
{
    Diag d = {.quiet = true};
    Model names = {.arena = a, .path = set};
    *n_feed = 0;
    for (int i = 0; i < m->n_input; i++) {
        const char *path = arena_printf(a, "%s/input_%d.pb", set, i);
        Value v = {0};
        if (!file_exists(path))
            continue;
        if (case_tensor(&d, &names, path, &v) != ST_OK)
            return case_say(why, "%s", d.message);
        v.dtype = case_bits_type(&v, m->value.at[m->input[i]].dtype);
        ferry_tensor *t = &feed[(*n_feed)++];
        *t = (ferry_tensor){m->value.at[m->input[i]].name, v.dtype, v.rank, {0}, (void *)v.data};
        memcpy(t->dim, v.dim, sizeof v.dim);
    }
    return CASE_PASSED;
}

/* ---- children -------------------------------------------------------------------------------------------------------- */

static int run_case(CaseFunction *run, const char *dir, char *why)
{
    Arena *a = arena_open();
    int result = CASE_PASSED, sets = 0;
    for (; result == CASE_PASSED; sets++) {
        const char *set = arena_printf(a, "%s/test_data_set_%d", dir, sets);
        if (!file_exists(set))
            break;
        result = run(a, arena_printf(a, "%s/model.onnx", dir), set, why);
    }
    arena_close(a);
    return sets > 0 ? result : case_say(why, "there is no test_data_set_0");
}

static int fork_case(CaseFunction *run, const char *dir, char *why)
{
    int pipes[2], status = 0;
    why[0] = '\0';
    if (pipe(pipes) != 0)
        return case_say(why, "pipe: %s", strerror(errno));
    fflush(stdout);
    pid_t child = fork();
    if (child < 0)
        return case_say(why, "fork: %s", strerror(errno));
    if (child == 0) {
        char text[CASE_TEXT] = "";
        close(pipes[0]);
        int result = run_case(run, dir, text);
        ssize_t written = write(pipes[1], text, strlen(text));
#ifdef FERRY_COVERAGE
        void __gcov_dump(void); /* _exit would lose what this process counted */
        __gcov_dump();
#endif
        _exit(written < 0 ? CASE_FAILED : result);
    }
    close(pipes[1]);
    /* the pipe closes when the child is done; until then nothing but its message comes */
    struct pollfd fd = {.fd = pipes[0], .events = POLLIN};
    size_t size = 0;
    bool late = false;
    for (;;) {
        late = poll(&fd, 1, SECONDS * 1000) == 0;
        ssize_t n = late ? 0 : read(pipes[0], why + size, CASE_TEXT - 1 - size);
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
        return case_say(why, "takes more than %d seconds", (int)SECONDS);
    if (WIFSIGNALED(status))
        return case_say(why, "crashes: signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

/* ---- operators of a case --------------------------------------------------------------------------------------------- */

typedef struct Ops {
    Arena *arena;
    int64_t opset;
    bool claimed; /* each is in the table, at this opset */
    VEC(const char *) name;
} Ops;

static const char *wire_text(Arena *a, const WireField *f)
{
    char *text = arena_alloc(a, f->size + 1, 1);
    return text != NULL ? memcpy(text, f->at, f->size) : "";
}

/* The nodes of a graph, and of those in their attributes. */
static void graph_ops(Ops *ops, const WireField *graph)
{
    WireField node, f, inner;
    for (Wire g = {graph->at, graph->at + graph->size, NULL}; wire_next(&g, &node);) {
        const char *op = "", *domain = "";
        if (node.number != 1)
            continue;
        for (Wire n = {node.at, node.at + node.size, NULL}; wire_next(&n, &f);) {
            op = f.number == 4 ? wire_text(ops->arena, &f) : op;
            domain = f.number == 7 ? wire_text(ops->arena, &f) : domain;
            for (Wire a = {f.at, f.at + f.size, NULL}; f.number == 5 && wire_next(&a, &inner);)
                if (inner.number == 6)
                    graph_ops(ops, &inner);
        }
        const char **slot = VEC_PUSH(&ops->name);
        if (slot != NULL)
            *slot = op;
        ops->claimed = ops->claimed && op_find(domain, op, ops->opset) != NULL;
    }
}

/* Of a file that cannot be read nothing is claimed. The caller frees ops->name. */
static void case_ops(Arena *a, const char *path, Ops *ops)
{
    Diag d = {.quiet = true};
    uint8_t *bytes;
    int64_t size;
    WireField f, part;
    *ops = (Ops){.arena = a};
    if (file_read(&d, path, 1 << 28, &bytes, &size) != ST_OK)
        return;
    if (onnx_scan(&d, path, bytes, (size_t)size) == ST_OK) {
        ops->claimed = true;
        for (Wire m = {bytes, bytes + size, NULL}; wire_next(&m, &f);) {
            const char *domain = "";
            int64_t version = 0;
            for (Wire o = {f.at, f.at + f.size, NULL}; f.number == 8 && wire_next(&o, &part);) {
                domain = part.number == 1 ? wire_text(a, &part) : domain;
                version = part.number == 2 ? (int64_t)part.value : version;
            }
            if (f.number == 8 && (domain[0] == '\0' || strcmp(domain, "ai.onnx") == 0))
                ops->opset = version;
        }
        for (Wire m = {bytes, bytes + size, NULL}; wire_next(&m, &f);)
            if (f.number == 7)
                graph_ops(ops, &f);
    }
    base_free(bytes);
}

/* ---- lists ----------------------------------------------------------------------------------------------------------- */

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
    if ((at = strstr(why, "element type ")) != NULL && sscanf(at, "element type %63s", word) == 1)
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

typedef struct Run {
    Arena *arena;
    CaseFunction *run;
    const char *data;
    List list, skipped;
    bool print;
    int cases, passed, known, wrong;
    int claimed, claimed_passed;
    double share;        /* percent, 0: not asked for */
    const char *covered; /* path, NULL */
    VEC(const char *) op;
} Run;

static void count_ops(Run *r, const char *name, bool passed)
{
    Ops ops;
    case_ops(r->arena, arena_printf(r->arena, "%s/node/%s/model.onnx", r->data, name), &ops);
    r->claimed += ops.claimed;
    r->claimed_passed += ops.claimed && passed;
    for (int i = 0; i < ops.name.count && passed; i++) {
        const char **slot = VEC_PUSH(&r->op);
        if (slot != NULL)
            *slot = ops.name.at[i];
    }
    VEC_FREE(&ops.name);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool write_covered(Run *r)
{
    Diag d = {0};
    Text t = {0};
    qsort(r->op.at, (size_t)r->op.count, sizeof *r->op.at, by_text);
    for (int i = 0; i < r->op.count; i++)
        if (i == 0 || strcmp(r->op.at[i - 1], r->op.at[i]) != 0)
            text_add(&t, "%s\n", r->op.at[i]);
    bool written = !t.failed && file_write(&d, r->covered, t.at, t.size) == ST_OK;
    if (!written)
        fprintf(stderr, "%s\n", d.message);
    text_free(&t);
    return written;
}

static void one(Run *r, const char *name)
{
    char why[CASE_TEXT];
    Known *known = find_known(&r->list, name);
    if (find_known(&r->skipped, name) != NULL)
        return;
    bool passed = fork_case(r->run, arena_printf(r->arena, "%s/node/%s", r->data, name), why) == CASE_PASSED;
    r->cases++;
    count_ops(r, name, passed);
    if (known != NULL)
        known->seen = true;
    r->passed += passed;
    r->known += !passed && known != NULL;
    if (r->print) {
        if (!passed)
            printf("%s: %s\n", name, short_reason(r->arena, why));
        return;
    }
    if (passed == (known != NULL))
        r->wrong++;
    if (passed && known != NULL)
        printf("%s passes, but is listed: %s\n", name, known->reason);
    if (!passed && known == NULL)
        printf("%s: %s\n", name, why);
}

static int named_cases(Run *r, int n, char **name)
{
    for (int i = 0; i < n; i++) {
        char why[CASE_TEXT];
        bool passed = fork_case(r->run, arena_printf(r->arena, "%s/node/%s", r->data, name[i]), why) == CASE_PASSED;
        printf("%s: %s\n", name[i], passed ? "passes" : why);
        r->wrong += !passed;
    }
    return r->wrong > 0;
}

static int all_cases(Run *r)
{
    struct dirent **entry;
    int count = scandir(arena_printf(r->arena, "%s/node", r->data), &entry, is_case, by_name);
    if (count <= 0) {
        fprintf(stderr, "%s: the ONNX test data is not there; install the package libonnx-testdata\n", r->data);
        return 1;
    }
    for (int i = 0; i < count; i++) {
        one(r, entry[i]->d_name);
        free(entry[i]);
    }
    free(entry);
    for (int i = 0; i < r->list.count; i++)
        if (!r->list.at[i].seen) {
            printf("%s is listed, but there is no such case\n", r->list.at[i].name);
            r->wrong++;
        }
    if (!r->print)
        printf("%d cases: %d pass, %d do not and are listed, %d are not as listed\n", r->cases, r->passed, r->known,
               r->wrong);
    double share = 100.0 * r->claimed_passed / (r->claimed > 0 ? r->claimed : 1);
    if (!r->print && r->share > 0)
        printf("%d of the %d cases whose operators are all in the table pass: %.2f %% (at least %g %%)\n", r->claimed_passed,
               r->claimed, share, r->share);
    if (r->covered != NULL && !write_covered(r))
        return 1;
    return (r->wrong > 0 || share < r->share) && !r->print;
}

int cases_main(int argc, char **argv, CaseFunction *run)
{
    Run r = {.arena = arena_open(), .run = run};
    const char *program = argv[0];
    int status = 1;
    bool read = true;
    for (argv++, argc--; argc > 0 && strncmp(argv[0], "--", 2) == 0; argv++, argc--) {
        if (strcmp(argv[0], "--list") == 0) {
            r.print = true;
        } else if (strcmp(argv[0], "--but") == 0 && argc > 1) {
            read = read && read_list(r.arena, argv[1], &r.skipped);
            argv++, argc--;
        } else if (strcmp(argv[0], "--share") == 0 && argc > 1) {
            r.share = strtod(argv[1], NULL);
            argv++, argc--;
        } else if (strcmp(argv[0], "--covered") == 0 && argc > 1) {
            r.covered = argv[1];
            argv++, argc--;
        } else {
            break;
        }
    }
    if (argc < 2 || strncmp(argv[0], "--", 2) == 0) {
        fprintf(stderr, "usage: %s [--list] [--but SKIPPED] [--share PERCENT] [--covered FILE] DATA LIST [CASE...]\n", program);
        status = 2;
    } else if (read && (r.print || read_list(r.arena, argv[1], &r.list))) {
        r.data = argv[0];
        status = argc > 2 ? named_cases(&r, argc - 2, argv + 2) : all_cases(&r);
    }
    VEC_FREE(&r.list);
    VEC_FREE(&r.skipped);
    VEC_FREE(&r.op);
    arena_close(r.arena);
    return status;
}
