/* emit.c - the folder of a schedule. */
#include "codegen/codegen.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* Before anything is written: safetensors files carry no ownership line of ours, their metadata does. */
static Status check_weights_file(Emitter *e, const char *name)
{
    const char *path = path_join(e->arena, e->options->dir, name);
    if (!path)
        return diag_oom(e->diag);
    if (!file_exists(path) || e->options->force)
        return ST_OK;
    ferry_weights *w = NULL;
    bool ours = false;
    if (ferry_weights_open(path, &w) == FERRY_OK) {
        const char *schema = ferry_weights_meta(w, "schema");
        ours = schema && strcmp(schema, "ferryc/weights/1") == 0;
    }
    ferry_weights_close(w);
    if (ours)
        return ST_OK;
    diag_fail(e->diag, ST_USAGE, "%s exists and was not written by ferryc emit", path);
    return diag_hint(e->diag, "choose another folder with -o, or overwrite it with -f");
}

typedef struct PartFile {
    const char *name, *prefix, *title;
    Status (*print)(Emitter *);
    bool keep_edited; /* meant to be edited: then it is left alone, with a note, and everything else is renewed */
} PartFile;

static const PartFile PARTS[] = {
    {"schedule.h", "//", "schedule", emit_schedule_h, false},
    {"schedule.c", "//", "schedule", emit_schedule_c, false},
    {"Makefile", "#", "makefile", emit_makefile, false},
    {"schedule.yaml", "#", "schedule, see schemas/schedule.md", emit_schedule_yaml, false},
    {"trainer.c", "//", "trainer", emit_trainer_c, true},
};
enum { N_PARTS = sizeof PARTS / sizeof *PARTS };

/* keep[i]: the part was edited and stays. Nothing is written when a file of the folder is not ours. */
static Status check_parts(Emitter *e, bool keep[N_PARTS])
{
    for (int i = 0; i < N_PARTS; i++) {
        keep[i] = false;
        const char *path = path_join(e->arena, e->options->dir, PARTS[i].name);
        if (!path)
            return diag_oom(e->diag);
        if (e->options->force)
            continue;
        Diag own = {.quiet = true};
        bool edited = false;
        Status status = owned_check(PARTS[i].keep_edited ? &own : e->diag, path, PARTS[i].prefix, &edited);
        if (status == ST_OK)
            continue;
        if (!PARTS[i].keep_edited || !edited) {
            if (PARTS[i].keep_edited)
                status = owned_check(e->diag, path, PARTS[i].prefix, &edited);
            return status;
        }
        keep[i] = true;
        diag_note(e->diag, "%s was edited and is left as it is; -f writes it anew", path);
    }
    return ST_OK;
}

static Status write_part(Emitter *e, const PartFile *part)
{
    const char *path = path_join(e->arena, e->options->dir, part->name);
    if (!path)
        return diag_oom(e->diag);
    e->text.size = 0;
    TRY(part->print(e));
    if (e->text.failed)
        return diag_oom(e->diag);
    return owned_write(e->diag, path, part->prefix, part->title, e->text.at, e->text.size, e->options->force);
}

Status emit(Diag *d, Arena *a, const Profile *p, const StepList *s, const EmitOptions *options)
{
    Emitter e = {.diag = d,
                 .arena = a,
                 .graph = s->graph,
                 .profile = p,
                 .steps = s,
                 .plan = s->plan,
                 .options = options};
    bool keep[N_PARTS];
    TRY(names_make(d, a, s, &e.names));
    TRY(parts_build(d, a, s, &e.parts));
    e.part_name = ARENA_NEW(a, const char *, e.parts.n);
    if (!e.part_name)
        return diag_oom(d);
    TRY(check_weights_file(&e, "constants.safetensors"));
    if (!options->random_init)
        TRY(check_weights_file(&e, "weights.safetensors"));
    TRY(check_parts(&e, keep));
    TRY(emit_weights_check(&e));
    if (mkdir(options->dir, 0777) != 0 && errno != EEXIST)
        return diag_fail(d, ST_USAGE, "cannot make the folder %s: %s", options->dir, strerror(errno));
    Status status = emit_weights(&e);
    for (int i = 0; i < N_PARTS && status == ST_OK; i++)
        if (!keep[i])
            status = write_part(&e, &PARTS[i]);
    text_free(&e.text);
    return status;
}
