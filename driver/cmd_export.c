/* ferryc export - trained weights back into a copy of the ONNX model. */
#include "codegen/codegen.h"
#include "driver/driver.h"
#include "graph/onnx_export.h"

#include <string.h>
#include <sys/stat.h>

enum { OPT_FORCE = 0x200, OPT_EXTERNAL, OPT_MODEL };

static const struct argp_option OPTIONS[] = {
    {"weights", 'w', "DIR", 0, "folder of a checkpoint, or a safetensors file", 0},
    {"output", 'o', "FILE", 0, "ONNX file to write (default trained.onnx)", 0},
    {"overwrite", 'f', 0, 0, "overwrite a file that ferryc export did not write", 0},
    {"external", OPT_EXTERNAL, 0, 0, "weights into FILE.data, as is always done when FILE would pass 2 GiB", 0},
    {"model", OPT_MODEL, "MODEL.onnx", 0, "where the model is, if it was moved since ferryc emit", 0},
    {"force", OPT_FORCE, 0, 0, "accept a model file that changed", 0},
    {0},
};

typedef struct Args {
    const char *dir, *weights, *out, *model;
    bool overwrite, external, force;
} Args;

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Args *a = state->input;
    switch (key) {
    case 'w':
        a->weights = arg;
        break;
    case 'o':
        a->out = arg;
        break;
    case 'f':
        a->overwrite = true;
        break;
    case OPT_EXTERNAL:
        a->external = true;
        break;
    case OPT_MODEL:
        a->model = arg;
        break;
    case OPT_FORCE:
        a->force = true;
        break;
    case ARGP_KEY_ARG:
        if (a->dir)
            argp_error(state, "one schedule at a time: '%s' is one too many", arg);
        a->dir = arg;
        break;
    case ARGP_KEY_END:
        if (!a->weights)
            argp_error(state, "which weights? ferryc export --weights DIR, as the trainer's --save DIR wrote it");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* The schedule's parameter of this name; of optimizer state, whose tensors are named after their parameter, that one.
 */
static int find_param(const Schedule *s, const char *name)
{
    static const char *const prefixes[] = {"", "optimizer.m.", "optimizer.v."};
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < s->n_param && strncmp(name, prefixes[k], strlen(prefixes[k])) == 0; i++)
            if (strcmp(s->param[i].name, name + strlen(prefixes[k])) == 0)
                return i;
    return -1;
}

/* The file has all parameters of the schedule and nothing else: otherwise it is of another model. */
static Status check_weights(Diag *d, const Schedule *s, const char *path, const ferry_weights *w, bool force)
{
    const char *model = ferry_weights_meta(w, "model");
    if (model && !force && strcmp(model, s->model_hash) != 0)
        return diag_fail(d, ST_MODEL, "%s: is of another model: hash %.40s, the schedule's is %s", path, model,
                         s->model_hash);
    for (int i = 0; i < s->n_param; i++)
        if (!ferry_weights_find(w, s->param[i].name)) {
            diag_fail(d, ST_MODEL, "%s: is of another model: parameter '%s' of the schedule is missing", path,
                      s->param[i].name);
            return diag_hint(d, "name the schedule's own checkpoint, or the schedule that wrote this one");
        }
    for (int i = 0; i < ferry_weights_count(w); i++)
        if (find_param(s, ferry_weights_at(w, i)->name) < 0) {
            diag_fail(d, ST_MODEL, "%s: is of another model: the schedule has no parameter '%s'", path,
                      ferry_weights_at(w, i)->name);
            return diag_hint(d, "name the schedule's own checkpoint, or the schedule that wrote this one");
        }
    return ST_OK;
}

/* Every parameter under each of the names that it has in the model. */
static Status list_weights(Diag *d, Arena *a, const Schedule *s, const ferry_weights *w, ExportOptions *o)
{
    int n = 0;
    for (int i = 0; i < s->n_param; i++)
        n += 1 + s->param[i].n_alias;
    ExportWeight *list = ARENA_NEW(a, ExportWeight, n);
    if (!list)
        return diag_oom(d);
    o->weight = list;
    for (int i = 0; i < s->n_param; i++) {
        const ScheduleParam *p = &s->param[i];
        const ferry_tensor *from = ferry_weights_find(w, p->name);
        list[o->n_weight++] = (ExportWeight){p->name, from, false};
        for (int k = 0; k < p->n_alias; k++)
            list[o->n_weight++] = (ExportWeight){p->alias[k].name, from, p->alias[k].transposed};
    }
    return ST_OK;
}

static Status run(Diag *d, Arena *a, const Args *args, ferry_weights **w)
{
    Schedule *s;
    struct stat st;
    ExportReport report;
    ExportOptions o = {
        .out = args->out, .force = args->overwrite, .inline_bytes = args->external ? 0 : EXPORT_INLINE_BYTES};
    TRY(schedule_read(d, a, args->dir, &s));
    const char *path = args->weights;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode) && !(path = path_join(a, path, "checkpoint.safetensors")))
        return diag_oom(d);
    ferry_status opened = ferry_weights_open(path, w);
    if (opened != FERRY_OK)
        return diag_fail(d, (Status)opened, "%s", ferry_error());
    TRY(check_weights(d, s, path, *w, args->force));
    TRY(list_weights(d, a, s, *w, &o));
    o.model = args->model ? args->model : s->model_path;
    o.model_hash = args->force ? NULL : s->model_hash;
    if (!file_exists(o.model)) {
        diag_fail(d, ST_USAGE, "%s: the model of the schedule is not there", o.model);
        return diag_hint(d, "say where it is: --model MODEL.onnx");
    }
    TRY(onnx_export(d, a, &o, &report));
    char size[32];
    printf("%s: %s, %d trained initializers, %d of them as before", args->out, size_print(size, report.bytes),
           report.changed + report.unchanged, report.unchanged);
    if (report.data_bytes)
        printf("; %s.data: %s", args->out, size_print(size, report.data_bytes));
    printf("\n");
    return ST_OK;
}

int cmd_export(int argc, char **argv)
{
    Diag diag = {0};
    Args args = {.out = "trained.onnx"};
    const struct argp parser = {OPTIONS, parse, "[schedule]", "Writes a copy of the ONNX model with trained weights.",
                                NULL,    NULL,  NULL};
    parse_args(&parser, argc, argv, &args);
    if (!args.dir)
        args.dir = "schedule";
    Arena *arena = arena_open();
    ferry_weights *weights = NULL;
    Status status = arena ? run(&diag, arena, &args, &weights) : diag_oom(&diag);
    ferry_weights_close(weights);
    arena_close(arena);
    return finish(&diag, status);
}
