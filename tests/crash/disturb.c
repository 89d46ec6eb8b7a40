/* Disturbs the calls by which a process changes files: counts them, lets one fail, or kills at one.
 *
 * The library is loaded by LD_PRELOAD, so it sees the calls of Python, of Rust and C extensions and of SQLite alike, and
 * also those of worker processes, which inherit it. The control block lies in a file that all these processes map;
 * tests/crash/control.py writes it and has the same layout. Only calls below the folder `top` count. A call that goes to
 * the kernel past the C library is not seen: safetensors renames its temporary file so. Kills at random times cover it.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { OPEN, WRITE, SYNC, RENAME, MKDIR, REMOVE, MODE, TRUNCATE, KINDS };

struct control {
    int64_t armed;    /* whether calls count at present */
    int64_t number;   /* how many calls there were */
    int64_t kill_at;  /* the number of the call before which `victim` is killed, or 0 */
    int64_t victim;   /* a process, or a process group if negative */
    int64_t fail_at;  /* the number of the call that fails, or 0 */
    int64_t error;    /* how it fails; after ENOSPC all calls that need space fail */
    int64_t full;     /* whether the disk is full */
    int64_t happened; /* whether the call that was asked for came */
    int64_t kinds[KINDS];
    char top[4096];
};

static struct control *control;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("LEANBAYES_CRASH_CONTROL");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *block = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (block != MAP_FAILED) control = block;
    close(file);
}

static int below_top(const char *path) {
    size_t length = strlen(control->top);
    return length && !strncmp(path, control->top, length) && (path[length] == '/' || !path[length]);
}

static int file_counts(int file) {
    if (!control || !control->armed) return 0;
    char name[64], path[4096];
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    ssize_t length = readlink(name, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return below_top(path);
}

static int path_counts(int folder, const char *path) {
    if (!control || !control->armed || !path) return 0;
    if (path[0] == '/') return below_top(path);
    if (folder != AT_FDCWD) return file_counts(folder);
    char here[4096];
    return getcwd(here, sizeof here) && below_top(here);
}

/* Count a call. Return the error that it must have, or 0. */
static int count(enum kind kind, int needs_space) {
    int64_t number = __atomic_add_fetch(&control->number, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&control->kinds[kind], 1, __ATOMIC_SEQ_CST);
    if (number == control->kill_at) {
        control->happened = 1;
        kill((pid_t)control->victim, SIGKILL);
    }
    if (number == control->fail_at) {
        control->happened = 1;
        if (control->error != ENOSPC) return (int)control->error;
        control->full = 1;
    }
    return control->full && needs_space ? ENOSPC : 0;
}

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) {
    void *function = dlsym(RTLD_NEXT, name);
    if (!function) abort();
    return function;
}

#define FAIL_IF(error)      \
    do {                    \
        int code = (error); \
        if (code) {         \
            errno = code;   \
            return -1;      \
        }                   \
    } while (0)

/* A disk that fills up takes a part of the bytes, and the next call finds it full, as write(2) says. */
#define WRITES(name, parameters, arguments_of_part, arguments)                       \
    ssize_t name parameters {                                                        \
        if (!file_counts(file)) return REAL(name) arguments;                         \
        int was_full = (int)control->full;                                           \
        int error = count(WRITE, 1);                                                 \
        if (!error) return REAL(name) arguments;                                     \
        size_t part = error == ENOSPC && !was_full ? size / 2 : 0;                   \
        if (part) return REAL(name) arguments_of_part;                               \
        errno = error;                                                               \
        return -1;                                                                   \
    }

WRITES(write, (int file, const void *data, size_t size), (file, data, part), (file, data, size))
WRITES(pwrite, (int file, const void *data, size_t size, off_t at), (file, data, part, at), (file, data, size, at))
WRITES(pwrite64, (int file, const void *data, size_t size, off64_t at), (file, data, part, at), (file, data, size, at))

ssize_t writev(int file, const struct iovec *parts, int number) {
    if (file_counts(file)) FAIL_IF(count(WRITE, 1));
    return REAL(writev)(file, parts, number);
}

ssize_t sendfile64(int file, int source, off64_t *at, size_t size);
ssize_t sendfile64(int file, int source, off64_t *at, size_t size) {
    if (file_counts(file)) FAIL_IF(count(WRITE, 1));
    return REAL(sendfile64)(file, source, at, size);
}

ssize_t sendfile(int file, int source, off_t *at, size_t size);
ssize_t sendfile(int file, int source, off_t *at, size_t size) {
    if (file_counts(file)) FAIL_IF(count(WRITE, 1));
    return REAL(sendfile)(file, source, at, size);
}

ssize_t copy_file_range(int source, off64_t *from, int file, off64_t *to, size_t size, unsigned flags) {
    if (file_counts(file)) FAIL_IF(count(WRITE, 1));
    return REAL(copy_file_range)(source, from, file, to, size, flags);
}

#define OPENS(folder, path, flags)                                                              \
    if (((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) && path_counts(folder, path)) {     \
        int new = ((flags) & O_CREAT) && faccessat(folder, path, F_OK, AT_SYMLINK_NOFOLLOW);    \
        FAIL_IF(count(OPEN, new));                                                              \
    }

#define MODE_OF(flags)                                  \
    mode_t mode = 0;                                    \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {            \
        va_list rest;                                   \
        va_start(rest, flags);                          \
        mode = va_arg(rest, mode_t);                    \
        va_end(rest);                                   \
    }

int open(const char *path, int flags, ...) {
    MODE_OF(flags)
    OPENS(AT_FDCWD, path, flags)
    return REAL(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    MODE_OF(flags)
    OPENS(AT_FDCWD, path, flags)
    return REAL(open64)(path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...) {
    MODE_OF(flags)
    OPENS(folder, path, flags)
    return REAL(openat)(folder, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...) {
    MODE_OF(flags)
    OPENS(folder, path, flags)
    return REAL(openat64)(folder, path, flags, mode);
}

int fsync(int file) {
    if (file_counts(file)) FAIL_IF(count(SYNC, 1));
    return REAL(fsync)(file);
}

int fdatasync(int file) {
    if (file_counts(file)) FAIL_IF(count(SYNC, 1));
    return REAL(fdatasync)(file);
}

int rename(const char *from, const char *to) {
    if (path_counts(AT_FDCWD, to)) FAIL_IF(count(RENAME, 1));
    return REAL(rename)(from, to);
}

int renameat(int folder, const char *from, int other, const char *to) {
    if (path_counts(other, to)) FAIL_IF(count(RENAME, 1));
    return REAL(renameat)(folder, from, other, to);
}

int renameat2(int folder, const char *from, int other, const char *to, unsigned flags) {
    if (path_counts(other, to)) FAIL_IF(count(RENAME, 1));
    return REAL(renameat2)(folder, from, other, to, flags);
}

int mkdir(const char *path, mode_t mode) {
    if (path_counts(AT_FDCWD, path)) FAIL_IF(count(MKDIR, 1));
    return REAL(mkdir)(path, mode);
}

int mkdirat(int folder, const char *path, mode_t mode) {
    if (path_counts(folder, path)) FAIL_IF(count(MKDIR, 1));
    return REAL(mkdirat)(folder, path, mode);
}

int unlink(const char *path) {
    if (path_counts(AT_FDCWD, path)) FAIL_IF(count(REMOVE, 0));
    return REAL(unlink)(path);
}

int unlinkat(int folder, const char *path, int flags) {
    if (path_counts(folder, path)) FAIL_IF(count(REMOVE, 0));
    return REAL(unlinkat)(folder, path, flags);
}

int rmdir(const char *path) {
    if (path_counts(AT_FDCWD, path)) FAIL_IF(count(REMOVE, 0));
    return REAL(rmdir)(path);
}

int chmod(const char *path, mode_t mode) {
    if (path_counts(AT_FDCWD, path)) FAIL_IF(count(MODE, 0));
    return REAL(chmod)(path, mode);
}

int fchmod(int file, mode_t mode) {
    if (file_counts(file)) FAIL_IF(count(MODE, 0));
    return REAL(fchmod)(file, mode);
}

int fchmodat(int folder, const char *path, mode_t mode, int flags) {
    if (path_counts(folder, path)) FAIL_IF(count(MODE, 0));
    return REAL(fchmodat)(folder, path, mode, flags);
}

int ftruncate(int file, off_t size) {
    if (file_counts(file)) FAIL_IF(count(TRUNCATE, 0));
    return REAL(ftruncate)(file, size);
}

int ftruncate64(int file, off64_t size) {
    if (file_counts(file)) FAIL_IF(count(TRUNCATE, 0));
    return REAL(ftruncate64)(file, size);
}

int fallocate64(int file, int mode, off64_t at, off64_t size) {
    if (file_counts(file)) FAIL_IF(count(TRUNCATE, 1));
    return REAL(fallocate64)(file, mode, at, size);
}

int posix_fallocate64(int file, off64_t at, off64_t size) {
    int error = file_counts(file) ? count(TRUNCATE, 1) : 0;
    return error ? error : REAL(posix_fallocate64)(file, at, size);
}
