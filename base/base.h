/* base.h - what every stage of the compiler uses: status and diagnostics, arenas, files, sizes, hashes.
 *
 * Status: the first error wins. A function that fails has put one message into the Diag of its caller and returns a
 * status other than ST_OK; the caller passes it on and adds nothing. The values are the exit codes of the program. */
#ifndef FERRY_BASE_H
#define FERRY_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define FERRYC_VERSION "0.1.0" /* CMakeLists.txt has the same */

typedef enum Status {
    ST_OK = 0,
    ST_FAILED = 1,     /* memory, input/output, device; a schedule that does not verify */
    ST_USAGE = 2,      /* options; no such file; an unbound dimension; foreign output */
    ST_NO_FIT = 3,     /* no plan fits the budget */
    ST_MODEL = 4,      /* model, data, YAML or weights wrong or unsupported */
    ST_REGRESSION = 5, /* ferryc check */
} Status;

#define TRY(call)                                                                                                          \
    do {                                                                                                                   \
        Status try_status_ = (call);                                                                                       \
        if (try_status_ != ST_OK)                                                                                          \
            return try_status_;                                                                                            \
    } while (0)

/* ---- arena: one for each compile stage; memory is zeroed, freed all at once ----------------------------------------- */

typedef struct Arena Arena;
Arena *arena_open(void); /* NULL when out of memory */
void arena_close(Arena *a);
/* count * size bytes, zeroed, aligned to 16; NULL when out of memory or on overflow. count 0 gives a valid pointer. */
void *arena_alloc(Arena *a, size_t count, size_t size);
char *arena_strdup(Arena *a, const char *s);
char *arena_printf(Arena *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define ARENA_NEW(a, T, count) ((T *)arena_alloc((a), (size_t)(count), sizeof(T)))

/* All heap memory of the compiler goes through these. base_fail_alloc(n) makes the n-th allocation from now on and all
 * later ones fail (0 switches it off), for tests; those from arenas count as well. */
void *base_alloc(size_t bytes); /* zeroed */
void *base_realloc(void *p, size_t bytes);
void base_free(void *p);
void base_fail_alloc(long n);
long base_alloc_count(void); /* allocations asked for since the program started, failed ones as well */

/* A growing array in heap memory: VEC_PUSH evaluates to the new element's address or NULL when out of memory. */
#define VEC(T)                                                                                                             \
    struct {                                                                                                               \
        T *at;                                                                                                             \
        int count, capacity;                                                                                               \
    }
bool vec_grow_(void **at, int *capacity, int count, size_t size);
#define VEC_PUSH(v)                                                                                                        \
    (vec_grow_((void **)&(v)->at, &(v)->capacity, (v)->count, sizeof(*(v)->at)) ? &(v)->at[(v)->count++] : NULL)
#define VEC_FREE(v) (base_free((v)->at), (v)->at = NULL, (v)->count = (v)->capacity = 0)

/* ---- diagnostics ----------------------------------------------------------------------------------------------------- */

typedef struct Diag {
    Status status;      /* of the first error, ST_OK before */
    char message[2048]; /* one line: file, place, what is wrong */
    char hint[2048];    /* what to do; may be empty */
    bool quiet;         /* warnings and notes are not printed (they are counted) */
    int warnings;       /* different ones, printed or not */
    uint64_t warned[128]; /* hashes of their texts; past these a text may be printed twice */
    int warned_count;
} Diag;

/* Records the first error; later calls change nothing. Returns the status of the first error, for `return diag_fail(..)`. */
Status diag_fail(Diag *d, Status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Adds what to do about the error just recorded, when it has no hint yet. Returns d->status. */
Status diag_hint(Diag *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
Status diag_oom(Diag *d); /* ST_FAILED, "out of memory" */
void diag_warn(Diag *d, const char *format, ...) __attribute__((format(printf, 2, 3))); /* to stderr, once each text */
void diag_note(Diag *d, const char *format, ...) __attribute__((format(printf, 2, 3))); /* to stderr */
void diag_print(const Diag *d, FILE *to); /* "ferryc: error: ..." and the hint on its own line, coloured on a terminal */

/* ---- sizes and numbers ----------------------------------------------------------------------------------------------- */

/* "24G", "24GiB", "1.5M" binary, "24GB" decimal, K M G T; "0" alone is 0. A bare number is ST_USAGE, with a hint. `what`
 * names the option in messages. */
Status size_parse(Diag *d, const char *what, const char *text, int64_t *out_bytes);
/* Human form, "3.91 GiB"; buf of at least 32 bytes; returns buf. */
const char *size_print(char *buf, int64_t bytes);
/* Human form of a time: "812 ns", "21.8 ms"; buf of at least 32 bytes; returns buf. */
const char *time_print(char *buf, int64_t ns);
bool mul_overflows_i64(int64_t a, int64_t b, int64_t *out); /* true on overflow */
bool add_overflows_i64(int64_t a, int64_t b, int64_t *out);

/* Shell pattern (fnmatch: * ? [..]) on a name; an exact name matches as well. */
bool glob_match(const char *pattern, const char *name);

/* ---- files ----------------------------------------------------------------------------------------------------------- */

/* Whole file, NUL-terminated after *out_size bytes, freed by base_free. A missing file is ST_USAGE; a directory, a fifo or
 * one larger than max_bytes ST_MODEL. */
Status file_read(Diag *d, const char *path, int64_t max_bytes, uint8_t **out, int64_t *out_size);
/* Writes through a temporary file in the same folder, fsync and rename: never half a file. */
Status file_write(Diag *d, const char *path, const void *data, size_t size);
/* The same in pieces: open, puts, sync, then commit, which gives the file its name. Several files that belong together are
 * synced before the first of them is committed. Whatever fails, abandon takes everything back; it is allowed after commit and
 * on a zeroed writer, where it does nothing. */
typedef struct FileWriter {
    bool open, replaces;
    int fd, mode; /* of the temporary file; permissions of the file that it replaces */
    char path[4096], target[4096], dir[4096], temporary[4096]; /* as asked for; links resolved; its folder; until commit */
} FileWriter;
Status file_writer_open(Diag *d, const char *path, FileWriter *out);
Status file_writer_put(Diag *d, FileWriter *w, const void *data, size_t size);
Status file_writer_sync(Diag *d, FileWriter *w);
Status file_writer_commit(Diag *d, FileWriter *w);
void file_writer_abandon(FileWriter *w);
bool file_exists(const char *path);
/* dir part of path ("." when none) / joined path, in the arena. An absolute `name` is returned as it is. */
char *path_dir(Arena *a, const char *path);
char *path_join(Arena *a, const char *dir, const char *name);
/* path to `target` as seen from the folder `from_dir`, links resolved; for references inside YAML files. NULL when one of
 * them does not exist or memory is out (errno tells, ENOMEM then). */
char *path_relative(Arena *a, const char *from_dir, const char *target);

/* ---- generated files ------------------------------------------------------------------------------------------------- */

/* A file is ours when its first line (after `prefix`, the comment sign) carries the hash of what follows that line:
 *     PREFIX ferryc 0.1.0 SHA TEXT...
 * owned_write refuses (ST_USAGE, naming -f) to replace a file that is not ours or was edited, unless force. */
/* (owned_check: the same refusal before anything is written. *out_edited: the file is ours with an edited body.) */
Status owned_check(Diag *d, const char *path, const char *prefix, bool *out_edited);
Status owned_write(Diag *d, const char *path, const char *prefix, const char *title, const char *body, size_t size, bool force);

/* ---- hashes ---------------------------------------------------------------------------------------------------------- */

/* XXH3 128 bits as 32 hex digits and a NUL. */
void hash_hex(const void *data, size_t size, char out[33]);
Status hash_file(Diag *d, const char *path, char out[33]); /* streams the file; a missing one is ST_USAGE */

/* ---- growing text ---------------------------------------------------------------------------------------------------- */

typedef struct Text {
    char *at; /* NUL-terminated once anything was added */
    size_t size, capacity;
    bool failed; /* out of memory; later additions are ignored */
} Text;
void text_add(Text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_add_bytes(Text *t, const char *bytes, size_t size);
void text_free(Text *t);

/* ---- YAML ------------------------------------------------------------------------------------------------------------ */

/* A YAML document as a tree with lines, read by libyaml's events, bounded (16 MiB, depth 16, 2 million nodes), no anchors,
 * aliases or tags; duplicate keys are refused. Errors are ST_MODEL and name file and line. */
typedef enum YamlKind { YAML_SCALAR, YAML_LIST, YAML_MAP } YamlKind;
typedef struct YamlNode YamlNode;
struct YamlNode {
    YamlKind kind;
    int line;            /* 1-based */
    const char *text;    /* scalar */
    bool quoted;         /* scalar was quoted: a string */
    int count;           /* list: items; map: pairs */
    YamlNode **item;     /* list items or map values */
    const char **key;    /* map keys */
    const int *key_line; /* map: their lines */
    const char *file;
};
Status yaml_read(Diag *d, Arena *a, const char *path, YamlNode **out);
Status yaml_parse(Diag *d, Arena *a, const char *name, const char *text, size_t size, YamlNode **out);

/* Typed access. Each says file, line and key when the value is missing, of the wrong kind or out of range. */
YamlNode *yaml_find(const YamlNode *map, const char *key); /* NULL when absent */
Status yaml_get(Diag *d, const YamlNode *map, const char *key, YamlKind kind, YamlNode **out);
Status yaml_get_text(Diag *d, const YamlNode *map, const char *key, const char **out);
Status yaml_get_int(Diag *d, const YamlNode *map, const char *key, int64_t min, int64_t max, int64_t *out);
Status yaml_get_real(Diag *d, const YamlNode *map, const char *key, double min, double max, double *out);
Status yaml_get_bool(Diag *d, const YamlNode *map, const char *key, bool *out);
Status yaml_as_int(Diag *d, const YamlNode *scalar, int64_t min, int64_t max, int64_t *out);
/* Refuses keys of the map that are not in the NULL-terminated list. */
Status yaml_only_keys(Diag *d, const YamlNode *map, const char *const *allowed);
Status yaml_error(Diag *d, const YamlNode *at, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* A double-quoted YAML (and JSON) string on one line; bytes that are no UTF-8 become U+FFFD. YAML reads a map key back
 * only when its quoted form has less than 1024 characters. */
void text_add_quoted(Text *t, const char *s);

#endif
