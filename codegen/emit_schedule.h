/* emit_schedule.h - what the files that write schedule.h and schedule.c share. */
#ifndef FERRY_EMIT_SCHEDULE_H
#define FERRY_EMIT_SCHEDULE_H

#include "codegen/codegen.h"

/* The parts of schedule.c that grow side by side while the steps are visited in program order. */
typedef struct ScheduleText {
    Text copies;  /* load_X, store_X */
    Text compute; /* fwd_X, bwd_X */
    Text updates; /* norm_X, update_X */
    Text body;    /* calls in schedule_step */
    Text pending; /* calls for the next compute function */
} ScheduleText;

/* emit_steps.c   fills: parts, whose texts the caller frees, also after a failure. e->text is as before. */
Status emit_steps(Emitter *e, ScheduleText *parts);
/* emit_schedule_h.c: the plan in two lines of a comment. */
void emit_summary(Emitter *e);
/* "FERRY_F32" */
const char *emit_dtype(ferry_dtype t);
/* The dimensions, between two strings. */
void emit_dims(Text *t, const Tensor *x, const char *open, const char *close);

#endif
