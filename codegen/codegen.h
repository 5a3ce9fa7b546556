/* codegen.h - a plan and its list of steps become a folder of C: schedule.h, schedule.c, trainer.c, Makefile, schedule.yaml and
 * the weights.
 *
 * Nothing is decided here: which steps there are, on which streams, which waits, and where every buffer lies comes from the
 * step list and the layout. codegen only gives names and prints. */
#ifndef FERRY_CODEGEN_CODEGEN_H
#define FERRY_CODEGEN_CODEGEN_H

#include "planner/steps.h"

typedef struct EmitOptions {
    const char *dir;    /* made when missing; its parent must exist */
    const char *prefix; /* folder with include/ferry and lib/libferry.a; the Makefile names it relative to dir */
    bool force;         /* overwrite files that are not ours or were edited */
    bool random_init;   /* no weights.safetensors: the trainer draws them from `seed` */
    uint64_t seed;
} EmitOptions;

/* ST_USAGE: a file in dir is not ours; ST_MODEL: a parameter has no data and random_init is off (the parameter and its file
 * named). Nothing is written then. Files are written one by one, each atomically; an edited trainer.c is kept, with a note. */
Status emit(Diag *d, Arena *a, const Profile *p, const StepList *s, const EmitOptions *options);

/* ---- schedule_yaml.c: what a schedule's folder knows about its model ------------------------------------------------------ */

typedef struct ScheduleParam {
    const char *name;
    int n_alias;
    ParamAlias *alias;
} ScheduleParam;

typedef struct Schedule {
    const char *path;       /* of schedule.yaml */
    const char *model_path; /* usable from here */
    char model_hash[33];
    int n_param;
    ScheduleParam *param;
} Schedule;

/* DIR/schedule.yaml, schema ferryc/schedule/1 (schemas/schedule.md). ST_USAGE: no such file; ST_MODEL: file, line and what. */
Status schedule_read(Diag *d, Arena *a, const char *dir, Schedule **out);

/* ---- names.c: C identifiers ---------------------------------------------------------------------------------------------- */

/* Unique C identifiers for every buffer, function and event of a schedule, made from ONNX names: lower case, the longest common
 * prefix of path components dropped, no keyword, numbered where two would be equal. */
typedef struct Names {
    const char **buffer;    /* by buffer: "h_0_attn_softmax", the field of its struct */
    const char **layer;     /* by layer: "h_0_attn_c_attn"; never "loss" */
    const char **unit;      /* by unit; never "inputs", "constants" or "loss" */
    const char **event;     /* by step: "LOADED_WTE"; NULL when no step of another stream waits for it */
    const char **input;     /* by Graph.input */
    const char **param;     /* by parameter */
} Names;
Status names_make(Diag *d, Arena *a, const StepList *s, Names *out);

/* ---- the printers -------------------------------------------------------------------------------------------------------- */

typedef struct Emitter {
    Diag *diag;
    Arena *arena;
    const Graph *graph;
    const Profile *profile;
    const StepList *steps;
    const Plan *plan;
    const EmitOptions *options;
    Names names;
    PartList parts;
    const char **part_name; /* by part: its function */
    Text text;
} Emitter;

/* c_text.c: a name as a string literal, and as a part of a comment (without the signs of the comment). */
void c_text_string(Text *t, const char *s);
void c_text_comment(Text *t, const char *s);

/* emit_calls.c: one kernel call, with a comment of its shapes. */
Status emit_kernel(Emitter *e, const Step *step);
/* Breaks a long statement that begins at this place of e->text between the arguments of its inner call. */
void emit_wrap(Emitter *e, size_t start);
/* Expression of a buffer's address: "s->gpu.wte", "s->host.wte", "s->act.h_0_y". */
const char *emit_buffer(Emitter *e, int buffer);

/* emit_schedule.c: the bodies of schedule.h and schedule.c (without the ownership line) in e->text. */
Status emit_schedule_h(Emitter *e);
Status emit_schedule_c(Emitter *e);
/* emit_memory.c: the fields of struct schedule and the function that maps them. */
void emit_fields(Emitter *e);
Status emit_map(Emitter *e);
/* emit_resident.c: what lives on the device across steps, its mirror in ordinary memory and the copies between them; nothing
 * without such parameters. */
bool emit_has_residents(const StepList *s);
void emit_resident_fields(Emitter *e);
void emit_residents(Emitter *e);
/* "s->resident[3].mirror" of a buffer. */
const char *emit_mirror(Emitter *e, int buffer);
/* emit_trainer.c */
Status emit_trainer_c(Emitter *e);
Status emit_makefile(Emitter *e);
/* schedule_yaml.c */
Status emit_schedule_yaml(Emitter *e);
/* emit_weights.c: weights.safetensors (unless random_init) and constants.safetensors. The check comes first: ST_MODEL when
 * values that have to be written are missing. */
Status emit_weights_check(Emitter *e);
Status emit_weights(Emitter *e);

#endif
