/* files.h - files as the runtime reads and writes them, and words about tensors for messages.
 *
 * Reading: a file is mapped whole, read-only. Only regular files are mapped, and opening never waits, so that a fifo, a
 * device or a folder in place of a file is an error and not a hang. The map has the size that the file had at the time
 * of opening; a file that another program shortens while it is mapped is outside of what can be checked.
 *
 * Writing: everything goes to a temporary file in the folder of the target, which is flushed to the disk and then
 * renamed over it. A reader sees the old file or the new one, never a part; after a failure the old file is still
 * there. */
#ifndef FERRY_RUNTIME_FILES_H
#define FERRY_RUNTIME_FILES_H

#include "runtime/internal.h"

typedef struct ferryi_map {
    const uint8_t *at; /* never NULL after a successful open */
    int64_t bytes;
} ferryi_map;

/* FERRY_USAGE: no such file. FERRY_BAD_DATA: not a regular file. FERRY_FAILED: the system refused. */
ferry_status ferryi_map_open(const char *path, ferryi_map *out);
void ferryi_map_close(ferryi_map *m); /* a zeroed map is allowed */

/* open, then any number of puts, then exactly one of commit (which may fail and then has undone) and abandon. */
typedef struct ferryi_writer {
    int fd;
    char *path, *temporary; /* owned */
} ferryi_writer;

ferry_status ferryi_writer_open(const char *path, ferryi_writer *out);
ferry_status ferryi_writer_put(ferryi_writer *w, const void *data, int64_t bytes);
ferry_status ferryi_writer_commit(ferryi_writer *w);
void ferryi_writer_abandon(ferryi_writer *w);

/* "f32 [2, 3]" into buf; returns buf. */
enum { FERRYI_SHAPE_TEXT = 256 };
const char *ferryi_shape_text(char buf[FERRYI_SHAPE_TEXT], const ferry_tensor *t);

/* A name from a file, made fit for a message: cut, and with every byte that is not printable ASCII replaced by '?'. */
enum { FERRYI_NAME_TEXT = 160 };
const char *ferryi_name_text(char buf[FERRYI_NAME_TEXT], const char *name);

/* Same type, rank and dimensions. */
bool ferryi_same_shape(const ferry_tensor *a, const ferry_tensor *b);

#endif
