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

static Status write_part(Emitter *e, const char *name, const char *prefix, const char *title, Status (*print)(Emitter *))
{
    const char *path = path_join(e->arena, e->options->dir, name);
    if (!path)
        return diag_oom(e->diag);
    e->text.size = 0;
    TRY(print(e));
    if (e->text.failed)
        return diag_oom(e->diag);
    return owned_write(e->diag, path, prefix, title, e->text.at, e->text.size, e->options->force);
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
    if (mkdir(options->dir, 0777) != 0 && errno != EEXIST)
        return diag_fail(d, ST_USAGE, "cannot make the folder %s: %s", options->dir, strerror(errno));
    TRY(names_make(d, a, s, &e.names));
    TRY(check_weights_file(&e, "constants.safetensors"));
    if (!options->random_init)
        TRY(check_weights_file(&e, "weights.safetensors"));
    Status status = write_part(&e, "schedule.h", "//", "schedule", emit_schedule_h);
    if (status == ST_OK)
        status = write_part(&e, "schedule.c", "//", "schedule", emit_schedule_c);
    if (status == ST_OK)
        status = emit_weights(&e);
    if (status == ST_OK)
        status = write_part(&e, "Makefile", "#", "makefile", emit_makefile);
    if (status == ST_OK)
        status = write_part(&e, "trainer.c", "//", "trainer", emit_trainer_c);
    text_free(&e.text);
    return status;
}
