/* file.h - what the files of base/ share about open files; not for other folders. */
#ifndef FERRY_BASE_FILE_H
#define FERRY_BASE_FILE_H

#include "base/base.h"

/* Opens a regular file to read, never waiting for anybody; the caller closes *out_fd (-1 on failure). *out_size, unless
 * NULL, is its size in bytes. No such file is ST_USAGE; a folder, fifo, socket or device ST_MODEL. */
Status base_file_open(Diag *d, const char *path, int *out_fd, int64_t *out_size);

/* Hash of what is left to read of an open file. */
Status base_hash_rest(Diag *d, const char *path, int fd, char out[33]);

#endif
