/* schedule_yaml.c - schedule.yaml, schema ferryc/schedule/1: the model of a schedule, and which initializers of it each
 * trained parameter stands for. ferryc export reads it; it says nothing that the plan decides, so a new plan or profile
 * beside an emitted schedule changes nothing here. */
#include "codegen/codegen.h"

#include <errno.h>
#include <string.h>

static const char *const SCHEMA = "ferryc/schedule/1";

Status emit_schedule_yaml(Emitter *e)
{
    const Graph *g = e->graph;
    Text *t = &e->text;
    const char *path = path_relative(e->arena, e->options->dir, g->model->path);
    if (!path && errno != ENOMEM)
        return diag_fail(e->diag, ST_FAILED, "%s: cannot find its place as seen from %s: %s", g->model->path,
                         e->options->dir, strerror(errno));
    if (!path)
        return diag_oom(e->diag);
    text_add(t, "schema: %s\ntool: \"ferryc " FERRYC_VERSION "\"\nmodel:\n  path: ", SCHEMA);
    text_add_quoted(t, path);
    text_add(t, "\n  hash: \"%s\"\nparameters:%s\n", g->model->hash, g->n_param ? "" : " []");
    for (int i = 0; i < g->n_param; i++) {
        const Param *p = &g->param[i];
        text_add(t, "  - name: ");
        text_add_quoted(t, p->name);
        text_add(t, "\n    ties:%s\n", p->n_alias ? "" : " []");
        for (int k = 0; k < p->n_alias; k++) {
            text_add(t, "      - name: ");
            text_add_quoted(t, p->alias[k].name);
            text_add(t, "\n        transposed: %s\n", p->alias[k].transposed ? "true" : "false");
        }
    }
    return t->failed ? diag_oom(e->diag) : ST_OK;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static Status read_param(Diag *d, Arena *a, const YamlNode *map, ScheduleParam *out)
{
    static const char *const keys[] = {"name", "ties", NULL}, *const tie_keys[] = {"name", "transposed", NULL};
    YamlNode *ties;
    if (map->kind != YAML_MAP)
        return yaml_error(d, map, "a parameter is a map with name and ties");
    TRY(yaml_only_keys(d, map, keys));
    TRY(yaml_get_text(d, map, "name", &out->name));
    TRY(yaml_get(d, map, "ties", YAML_LIST, &ties));
    out->n_alias = ties->count;
    out->alias = ARENA_NEW(a, ParamAlias, ties->count);
    if (!out->alias)
        return diag_oom(d);
    for (int i = 0; i < ties->count; i++) {
        if (ties->item[i]->kind != YAML_MAP)
            return yaml_error(d, ties->item[i], "a tie is a map with name and transposed");
        TRY(yaml_only_keys(d, ties->item[i], tie_keys));
        TRY(yaml_get_text(d, ties->item[i], "name", &out->alias[i].name));
        TRY(yaml_get_bool(d, ties->item[i], "transposed", &out->alias[i].transposed));
    }
    return ST_OK;
}

static Status read_model(Diag *d, Arena *a, const char *dir, const YamlNode *top, Schedule *s)
{
    static const char *const keys[] = {"path", "hash", NULL};
    YamlNode *model;
    const char *path, *hash;
    TRY(yaml_get(d, top, "model", YAML_MAP, &model));
    TRY(yaml_only_keys(d, model, keys));
    TRY(yaml_get_text(d, model, "path", &path));
    TRY(yaml_get_text(d, model, "hash", &hash));
    if (strlen(hash) != 32 || strspn(hash, "0123456789abcdef") != 32)
        return yaml_error(d, yaml_find(model, "hash"), "hash is 32 hexadecimal digits, not '%.80s'", hash);
    memcpy(s->model_hash, hash, sizeof s->model_hash);
    s->model_path = path_join(a, dir, path);
    return s->model_path ? ST_OK : diag_oom(d);
}

Status schedule_read(Diag *d, Arena *a, const char *dir, Schedule **out)
{
    static const char *const keys[] = {"schema", "tool", "model", "parameters", NULL};
    YamlNode *top, *list;
    const char *schema, *tool;
    *out = NULL;
    Schedule *s = ARENA_NEW(a, Schedule, 1);
    if (!s || !(s->path = path_join(a, dir, "schedule.yaml")))
        return diag_oom(d);
    if (yaml_read(d, a, s->path, &top) != ST_OK) {
        if (d->status == ST_USAGE)
            diag_hint(d, "name a folder that ferryc emit wrote");
        return d->status;
    }
    TRY(yaml_get_text(d, top, "schema", &schema));
    if (strcmp(schema, SCHEMA) != 0)
        return yaml_error(d, yaml_find(top, "schema"), "schema is '%.80s', this program reads %s", schema, SCHEMA);
    TRY(yaml_only_keys(d, top, keys));
    TRY(yaml_get_text(d, top, "tool", &tool));
    TRY(read_model(d, a, dir, top, s));
    TRY(yaml_get(d, top, "parameters", YAML_LIST, &list));
    s->n_param = list->count;
    s->param = ARENA_NEW(a, ScheduleParam, list->count);
    if (!s->param)
        return diag_oom(d);
    for (int i = 0; i < list->count; i++)
        TRY(read_param(d, a, list->item[i], &s->param[i]));
    *out = s;
    return ST_OK;
}
