/* run_yaml.c - the reader of run.yaml, schema ferryc/run/1 (schemas/run.md), which an emitted trainer writes.
 *
 * needs: the list of steps of the plan that was run   fills: Run   keeps: the list */
#include "report/report.h"

#include <string.h>

static const char SCHEMA[] = "ferryc/run/1";
enum { STEPS_MOST = 1000000 };
#define TIME_MOST ((int64_t)1 << 53)

static Status read_iteration(Diag *d, const YamlNode *top, RunTiming *out)
{
    static const char *const keys[] = {"median_ns", "mean_ns", "min_ns", "max_ns", NULL};
    YamlNode *map;
    TRY(yaml_get(d, top, "iteration", YAML_MAP, &map));
    TRY(yaml_only_keys(d, map, keys));
    TRY(yaml_get_int(d, map, "median_ns", 0, TIME_MOST, &out->median_ns));
    TRY(yaml_get_int(d, map, "mean_ns", 0, TIME_MOST, &out->mean_ns));
    TRY(yaml_get_int(d, map, "min_ns", 0, out->median_ns, &out->min_ns));
    return yaml_get_int(d, map, "max_ns", out->median_ns, TIME_MOST, &out->max_ns);
}

/* The parts of a run stand in the order of the plan's. */
static Status read_part(Diag *d, const YamlNode *map, const Part *part, RunPart *out)
{
    static const char *const keys[] = {"stream", "what", "of", "start_ns", "median_ns", "min_ns", "max_ns", NULL};
    const char *stream, *what, *of;
    if (map->kind != YAML_MAP)
        return yaml_error(d, map, "a part is a map with stream, what, of and its times");
    TRY(yaml_only_keys(d, map, keys));
    TRY(yaml_get_text(d, map, "stream", &stream));
    TRY(yaml_get_text(d, map, "what", &what));
    TRY(yaml_get_text(d, map, "of", &of));
    if (strcmp(stream, step_stream_name(part->stream)) != 0 || strcmp(what, part->what) != 0 ||
        strcmp(of, part->of) != 0)
        return yaml_error(d, map, "the plan has '%s of %.80s' on the %s stream here, not '%.40s of %.80s'", part->what,
                          part->of, step_stream_name(part->stream), what, of);
    TRY(yaml_get_int(d, map, "start_ns", -TIME_MOST, TIME_MOST, &out->start_ns));
    TRY(yaml_get_int(d, map, "median_ns", 0, TIME_MOST, &out->median_ns));
    TRY(yaml_get_int(d, map, "min_ns", 0, out->median_ns, &out->min_ns));
    return yaml_get_int(d, map, "max_ns", out->median_ns, TIME_MOST, &out->max_ns);
}

Status run_read(Diag *d, Arena *a, const char *path, const Plan *plan, const PartList *parts, bool force, Run **out)
{
    static const char *const keys[] = {"schema",    "tool",       "plan_hash",     "device", "first_step", "steps",
                                       "iteration", "pool_bytes", "scratch_bytes", "parts",  NULL};
    YamlNode *top, *list;
    const char *schema, *tool, *hash;
    int64_t steps, first;
    *out = NULL;
    Run *r = ARENA_NEW(a, Run, 1);
    if (!r)
        return diag_oom(d);
    TRY(yaml_read(d, a, path, &top));
    TRY(yaml_get_text(d, top, "schema", &schema));
    if (strcmp(schema, SCHEMA) != 0) {
        yaml_error(d, yaml_find(top, "schema"), "schema is '%.80s', a recorded run has %s", schema, SCHEMA);
        return diag_hint(d, "record one with: schedule/trainer --record run.yaml");
    }
    TRY(yaml_only_keys(d, top, keys));
    TRY(yaml_get_text(d, top, "tool", &tool));
    TRY(yaml_get_text(d, top, "plan_hash", &hash));
    if (!force && strcmp(hash, plan->hash) != 0) {
        yaml_error(d, yaml_find(top, "plan_hash"), "this is a run of another plan (hash %.40s, %s has %s)", hash,
                   plan->path ? plan->path : "the plan", plan->hash);
        return diag_hint(d, "emit and run this plan, or use --force");
    }
    TRY(yaml_get_text(d, top, "device", &r->device));
    TRY(yaml_get_int(d, top, "first_step", 1, TIME_MOST, &first));
    TRY(yaml_get_int(d, top, "steps", 2, STEPS_MOST, &steps));
    r->steps = (int)steps;
    TRY(read_iteration(d, top, &r->iteration));
    TRY(yaml_get_int(d, top, "pool_bytes", 0, TIME_MOST, &r->pool_bytes));
    TRY(yaml_get_int(d, top, "scratch_bytes", 0, TIME_MOST, &r->scratch_bytes));
    TRY(yaml_get(d, top, "parts", YAML_LIST, &list));
    if (list->count != parts->n)
        return yaml_error(d, list, "%d parts, and the plan's steps make %d", list->count, parts->n);
    r->part = ARENA_NEW(a, RunPart, list->count);
    if (!r->part)
        return diag_oom(d);
    for (int i = 0; i < list->count; i++)
        TRY(read_part(d, list->item[i], &parts->part[i], &r->part[i]));
    *out = r;
    return ST_OK;
}
