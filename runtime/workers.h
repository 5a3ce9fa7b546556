/* workers.h - a team of threads for one large piece of CPU work at a time. */
#ifndef FERRY_RUNTIME_WORKERS_H
#define FERRY_RUNTIME_WORKERS_H

#include "runtime/internal.h"

typedef struct ferryi_workers ferryi_workers;

/* As many threads as this process may use processors, less one of four and more, the caller of `run` among them, but at most
 * 32: memory is the limit before that. FERRY_FAILED: threads or memory. */
ferry_status ferryi_workers_open(ferryi_workers **out);
void ferryi_workers_close(ferryi_workers *w); /* NULL is allowed */
int ferryi_workers_count(const ferryi_workers *w);

/* Calls fn(arg, part) for each part in [0, parts), on any of the threads and in any order, and returns when all are
 * done. What the parts compute must not depend on who does. NULL, or a team that is busy with another caller's work:
 * the caller does all of it. */
void ferryi_workers_run(ferryi_workers *w, int64_t parts, void (*fn)(void *arg, int64_t part), void *arg);

/* The device's team, opened at the first call; NULL when that fails. */
ferryi_workers *ferryi_device_workers(ferry_device *d);

#endif
