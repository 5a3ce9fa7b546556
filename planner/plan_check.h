/* plan_check.h - the parts of plan_verify. Each proves one thing and fails with a message that names what is wrong. */
#ifndef FERRY_PLANNER_PLAN_CHECK_H
#define FERRY_PLANNER_PLAN_CHECK_H

#include "planner/steps.h"

enum { PROOF_ITERATIONS = 3 };

/* plan_check_program.c: the steps, one after the other, are a training step on the buffers that the plan gives. */
Status plan_check_program(Diag *d, const StepList *s);

/* plan_check_layout.c: every device buffer has its own well-formed place, and shared bytes are never live at once. */
Status plan_check_layout(Diag *d, const StepList *s, const Order *order, const Layout *layout);

#endif
