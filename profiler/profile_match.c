/* profile_match.c - whether a profile belongs to a graph, and the way from a profile's file to both. */
#include <string.h>

#include "profiler/profile.h"

static const char *file_of(const Profile *p)
{
    return p->path ? p->path : "the profile";
}

static Status advise(Diag *d)
{
    return diag_hint(d, "profile the model again with 'ferryc profile'");
}

static Status match_counts(Diag *d, const Profile *p, const char *what, int in_profile, int in_graph)
{
    if (in_profile == in_graph)
        return ST_OK;
    diag_fail(d, ST_MODEL, "%s: has %d %s, the model has %d", file_of(p), in_profile, what, in_graph);
    return advise(d);
}

static Status match_name(Diag *d, const Profile *p, const char *what, int i, const char *in_profile,
                         const char *in_graph)
{
    if (strcmp(in_profile, in_graph) == 0)
        return ST_OK;
    diag_fail(d, ST_MODEL, "%s: %s %d is '%s', in the model it is '%s'", file_of(p), what, i, in_profile, in_graph);
    return advise(d);
}

Status profile_match(Diag *d, const Profile *p, const Graph *g, bool force)
{
    const char *hash = g->model ? g->model->hash : "";
    if (!force && strcmp(p->model_hash, hash) != 0) {
        diag_fail(d, ST_MODEL, "%s: was made from another content of the model (hash %s, the file has %s)", file_of(p),
                  p->model_hash, hash);
        return diag_hint(d, "profile the model again with 'ferryc profile'; --force takes the times as they are");
    }
    TRY(match_counts(d, p, "layers", p->n_layer, g->n_layer));
    TRY(match_counts(d, p, "units", p->n_unit, g->n_unit));
    for (int i = 0; i < g->n_layer; i++)
        TRY(match_name(d, p, "layer", i, p->layer[i].name, g->layer[i].name));
    for (int i = 0; i < g->n_unit; i++)
        TRY(match_name(d, p, "unit", i, p->unit[i].name, g->unit[i].name));
    return ST_OK;
}

Status profile_load(Diag *d, Arena *a, const char *path, bool force, const char *dump_after, Profile **profile,
                    Model **model, Graph **graph)
{
    *profile = NULL;
    *model = NULL;
    *graph = NULL;
    Profile *p;
    TRY(profile_read(d, a, path, &p));
    ModelOptions options = p->options;
    options.allow_missing_data = true; /* shapes are enough until weights are written */
    options.dump_after = dump_after;
    Model *m;
    Graph *g;
    TRY(graph_from_options(d, a, &options, &m, &g));
    Status status = profile_match(d, p, g, force);
    if (status != ST_OK) {
        graph_close(g);
        model_close(m);
        return status;
    }
    *profile = p;
    *model = m;
    *graph = g;
    return ST_OK;
}
