/* status.c - the message of the last failure on each thread. */
#include "runtime/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = 1024 };

static _Thread_local char message[MESSAGE_BYTES];

const char *ferry_error(void)
{
    return message;
}

ferry_status ferryi_fail(ferry_status status, const char *fmt, ...)
{
    char text[MESSAGE_BYTES]; /* apart from message, which the arguments may point into */
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    memcpy(message, text, sizeof(message));
    return status;
}
