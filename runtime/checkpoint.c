/* checkpoint.c - parameters and optimizer state of a run in one safetensors file. The layout is in ferry.h. */
#include "runtime/files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char SCHEMA[] = "ferryc/checkpoint/1";

static const char *const prefixes[3] = {"", "optimizer.m.", "optimizer.v."};

/* The tensors of a checkpoint in one array: parameters, m, v. Names are owned. */
typedef struct checkpoint {
    char *path;
    ferry_tensor *tensor;
    char **name;
    int count;
} checkpoint;

static void checkpoint_close(checkpoint *c)
{
    for (int i = 0; i < c->count; i++) {
        free(c->name[i]);
    }
    free(c->name);
    free(c->tensor);
    free(c->path);
    *c = (checkpoint){0};
}

/* needs: the arguments of save and load   fills: *c   keeps: the arguments   spoils: nothing */
static ferry_status checkpoint_open(const char *dir, const ferry_tensor *const parts[3], int count, checkpoint *c)
{
    *c = (checkpoint){0};
    bool given = dir != NULL && dir[0] != 0 && count >= 0 && count <= INT32_MAX / 4;
    for (int k = 0; k < 3 && given; k++) {
        given = count == 0 || parts[k] != NULL;
    }
    if (!given) {
        return ferryi_fail(FERRY_USAGE, "a checkpoint needs a folder, parameters and both of their state tensors");
    }
    size_t size = strlen(dir) + 32;
    c->path = malloc(size);
    c->tensor = calloc((size_t)count * 3 + 1, sizeof *c->tensor);
    c->name = calloc((size_t)count * 3 + 1, sizeof *c->name);
    if (c->path == NULL || c->tensor == NULL || c->name == NULL) {
        checkpoint_close(c);
        return ferryi_fail(FERRY_FAILED, "out of memory");
    }
    snprintf(c->path, size, "%s/checkpoint.safetensors", dir);
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < count; i++) {
            const char *name = parts[0][i].name;
            const ferry_tensor *t = &parts[k][i];
            if (k > 0 && t->name == NULL && t->data == NULL) {
                continue; /* a frozen parameter has no state */
            }
            int64_t bytes = ferry_tensor_bytes(t);
            if (name == NULL || bytes < 0 || (bytes > 0 && t->data == NULL)) {
                char text[FERRYI_NAME_TEXT];
                ferryi_name_text(text, name != NULL ? name : "(no name)");
                checkpoint_close(c);
                return ferryi_fail(FERRY_USAGE, "checkpoint tensor '%s%s' has no name, no data or an impossible shape",
                                   prefixes[k], text);
            }
            size_t room = strlen(prefixes[k]) + strlen(name) + 1;
            char *full = malloc(room);
            if (full == NULL) {
                checkpoint_close(c);
                return ferryi_fail(FERRY_FAILED, "out of memory");
            }
            snprintf(full, room, "%s%s", prefixes[k], name);
            c->name[c->count] = full;
            c->tensor[c->count] = *t;
            c->tensor[c->count].name = full;
            c->count++;
        }
    }
    return FERRY_OK;
}

/* ---- saving ---------------------------------------------------------------------------------------------------- */

/* Makes the folder and those above it. */
static ferry_status make_folder(const char *dir)
{
    char *path = strdup(dir);
    if (path == NULL) {
        return ferryi_fail(FERRY_FAILED, "out of memory");
    }
    ferry_status status = FERRY_OK;
    for (char *at = path + 1; status == FERRY_OK; at++) {
        char c = *at;
        if (c != '/' && c != 0) {
            continue;
        }
        *at = 0;
        if (mkdir(path, 0777) != 0 && errno != EEXIST && errno != EISDIR) {
            status = ferryi_fail(FERRY_FAILED, "the folder %s cannot be made: %s", path, strerror(errno));
        }
        *at = c;
        if (c == 0) {
            break;
        }
    }
    struct stat st;
    if (status == FERRY_OK && (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))) {
        status = ferryi_fail(FERRY_USAGE, "%s is not a folder", dir);
    }
    free(path);
    return status;
}

ferry_status ferry_checkpoint_save(const char *dir, const ferry_tensor *params, const ferry_tensor *m,
                                   const ferry_tensor *v, int count, int64_t step)
{
    if (step < 0) {
        return ferryi_fail(FERRY_USAGE, "step %lld of a checkpoint is negative", (long long)step);
    }
    checkpoint c;
    ferry_status status = checkpoint_open(dir, (const ferry_tensor *const[]){params, m, v}, count, &c);
    if (status != FERRY_OK) {
        return status;
    }
    char number[32];
    snprintf(number, sizeof number, "%lld", (long long)step);
    const ferry_meta meta[] = {{"schema", SCHEMA}, {"step", number}};
    status = make_folder(dir);
    if (status == FERRY_OK) {
        status = ferry_weights_write(c.path, c.tensor, c.count, meta, 2);
    }
    checkpoint_close(&c);
    return status;
}

/* ---- loading --------------------------------------------------------------------------------------------------- */

static ferry_status check_meta(const checkpoint *c, const ferry_weights *w, int64_t *step)
{
    char text[FERRYI_NAME_TEXT];
    const char *schema = ferry_weights_meta(w, "schema");
    if (schema == NULL || strcmp(schema, SCHEMA) != 0) {
        return ferryi_fail(FERRY_BAD_DATA, "%s is not a checkpoint: its schema is %s, expected %s", c->path,
                           schema != NULL ? ferryi_name_text(text, schema) : "missing", SCHEMA);
    }
    const char *number = ferry_weights_meta(w, "step");
    const char *at = number != NULL ? number : "";
    int64_t n = 0;
    bool good = *at != 0;
    for (; *at != 0 && good; at++) {
        good = *at >= '0' && *at <= '9' && ferryi_mul(n, 10, &n) && ferryi_add(n, *at - '0', &n);
    }
    if (!good) {
        return ferryi_fail(FERRY_BAD_DATA, "%s: the step '%s' is not a whole number", c->path,
                           ferryi_name_text(text, number != NULL ? number : ""));
    }
    *step = n;
    return FERRY_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const ferry_tensor *)a)->name, ((const ferry_tensor *)b)->name);
}

/* needs: c, w   fills: nothing   keeps: w, the data   spoils: the order of c's tensors (sorted by name)
 * Both sides hold the same names, and under each the same type and shape. */
static ferry_status check_tensors(checkpoint *c, const ferry_weights *w)
{
    char name[FERRYI_NAME_TEXT], want[FERRYI_SHAPE_TEXT], have[FERRYI_SHAPE_TEXT];
    qsort(c->tensor, (size_t)c->count, sizeof *c->tensor, compare_names);
    for (int i = 0; i < c->count; i++) {
        const ferry_tensor *t = &c->tensor[i], *found = ferry_weights_find(w, t->name);
        ferryi_name_text(name, t->name);
        if (i > 0 && strcmp(t->name, c->tensor[i - 1].name) == 0) {
            return ferryi_fail(FERRY_USAGE, "checkpoint tensor '%s' stands twice", name);
        }
        if (found == NULL) {
            return ferryi_fail(FERRY_BAD_DATA, "%s: tensor '%s' is missing", c->path, name);
        }
        if (!ferryi_same_shape(t, found)) {
            return ferryi_fail(FERRY_BAD_DATA, "%s: tensor '%s' is %s, expected %s", c->path, name,
                               ferryi_shape_text(have, found), ferryi_shape_text(want, t));
        }
    }
    for (int i = 0; i < ferry_weights_count(w); i++) {
        const ferry_tensor *found = ferry_weights_at(w, i);
        if (bsearch(found, c->tensor, (size_t)c->count, sizeof *c->tensor, compare_names) == NULL) {
            return ferryi_fail(FERRY_BAD_DATA, "%s: tensor '%s' is not one of this model's", c->path,
                               ferryi_name_text(name, found->name));
        }
    }
    return FERRY_OK;
}

ferry_status ferry_checkpoint_load(const char *dir, const ferry_tensor *params, const ferry_tensor *m,
                                   const ferry_tensor *v, int count, int64_t *step)
{
    checkpoint c;
    ferry_weights *w = NULL;
    int64_t n = 0;
    if (step == NULL) {
        return ferryi_fail(FERRY_USAGE, "a checkpoint's step has no place to go");
    }
    ferry_status status = checkpoint_open(dir, (const ferry_tensor *const[]){params, m, v}, count, &c);
    if (status == FERRY_OK) {
        status = ferry_weights_open(c.path, &w);
    }
    if (status == FERRY_OK) {
        status = check_meta(&c, w, &n);
    }
    if (status == FERRY_OK) {
        status = check_tensors(&c, w);
    }
    for (int i = 0; i < c.count && status == FERRY_OK; i++) {
        const ferry_tensor *t = &c.tensor[i];
        int64_t bytes = ferry_tensor_bytes(t);
        if (bytes > 0) {
            memcpy(t->data, ferry_weights_find(w, t->name)->data, (size_t)bytes);
        }
    }
    if (status == FERRY_OK) {
        *step = n;
    }
    ferry_weights_close(w);
    checkpoint_close(&c);
    return status;
}
