/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "meeting.h"
#include "core/error.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/wire.h"
#include "provider/soft/link/auth.h"
#include "provider/soft/link/crypto.h"

static const char key_name[] = "key";

/*
 * The user may have changed, as with su(1), and the variable not. The XDG Base Directory
 * Specification wants an absolute path, and a replacement for a folder that is not there.
 */
static const char *find_runtime_folder(void)
{
	const char *path = secure_getenv("XDG_RUNTIME_DIR");
	struct stat facts;

	if (!path || *path != '/' || stat(path, &facts) < 0 || !S_ISDIR(facts.st_mode) ||
	    facts.st_uid != geteuid())
		return NULL;
	return path;
}

/* If it is in /tmp, another user may have made it first. */
static int name_folder(struct soft_meeting *meeting)
{
	const char *parent = find_runtime_folder();
	int used;

	if (parent)
		used = snprintf(meeting->folder, SOFT_FOLDER_SIZE, "%s/pier-soft0",
				parent);
	else
		used = snprintf(meeting->folder, SOFT_FOLDER_SIZE, "/tmp/pier-soft0-%u",
				(unsigned int)geteuid());
	if (used < SOFT_FOLDER_SIZE)
		return 0;
	return pier_fail(ENAMETOOLONG,
			 "soft0: XDG_RUNTIME_DIR=%s is too long for Unix sockets in it: "
			 "the limit is %d bytes",
			 parent, SOFT_FOLDER_SIZE - 12);
}

/*
 * Another user could have made the folder first, or replaced it by a link. It may have
 * S_ISGID, which mkdir(2) gives it in a folder that has it.
 */
static int open_folder(const char *path, int *ret_fd)
{
	pier_auto_fd fd = -1;
	struct stat facts;

	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return pier_fail(errno, "soft0: cannot make the folder %s", path);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &facts) < 0)
		return pier_fail(errno, "soft0: cannot open the folder %s", path);
	if (facts.st_uid != geteuid() || (facts.st_mode & 0777) != 0700)
		return pier_fail(
			EACCES,
			"soft0: the folder %s is of user %u and has mode %04o; "
			"it must be of user %u and have mode 0700: remove it, or "
			"set XDG_RUNTIME_DIR to a folder of your own",
			path, (unsigned int)facts.st_uid,
			(unsigned int)facts.st_mode & 07777, (unsigned int)geteuid());
	*ret_fd = pier_take_fd(&fd);
	return 0;
}

static int check_key_file(int fd, const char *folder, const char *name)
{
	struct stat facts;

	if (fstat(fd, &facts) < 0)
		return pier_fail(errno, "soft0: key file %s%s", folder, name);
	if (!S_ISREG(facts.st_mode) || (facts.st_mode & 077) ||
	    (facts.st_uid != geteuid() && facts.st_uid != 0))
		return pier_fail(EACCES,
				 "soft0: the key file %s%s is of user %u and has mode "
				 "%06o; it must be a regular file of user %u that nobody "
				 "else can read (mode 0600)",
				 folder, name, (unsigned int)facts.st_uid,
				 (unsigned int)facts.st_mode, (unsigned int)geteuid());
	if (facts.st_size != SOFT_KEY_SIZE)
		return pier_fail(EINVAL,
				 "soft0: the key file %s%s has %lld bytes; it must have "
				 "%d random bytes",
				 folder, name, (long long)facts.st_size, SOFT_KEY_SIZE);
	return 0;
}

/* `folder` is for messages. O_NONBLOCK: it may be a FIFO. */
static int read_key(int at, const char *folder, const char *name, int flags,
		    uint8_t *ret_key)
{
	pier_auto_fd fd = openat(at, name,
				 O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags);
	ssize_t length;
	int error;

	if (fd < 0)
		return errno == ENOENT
			       ? -ENOENT
			       : pier_fail(errno, "soft0: cannot open the key file %s%s",
					   folder, name);
	error = check_key_file(fd, folder, name);
	if (error)
		return error;
	length = read(fd, ret_key, SOFT_KEY_SIZE);
	if (length == SOFT_KEY_SIZE)
		return 0;
	return pier_fail(length < 0 ? errno : EINVAL,
			 "soft0: cannot read the key file %s%s", folder, name);
}

static int write_key(int fd)
{
	uint8_t key[SOFT_KEY_SIZE];
	ssize_t written = -1;

	if (pier_soft_random(key, sizeof(key)))
		written = write(fd, key, sizeof(key));
	explicit_bzero(key, sizeof(key));
	if (written == sizeof(key))
		return 0;
	return written < 0 ? -errno : -ENOSPC;
}

/*
 * Links a complete file to the name, so that a reader never finds half a key. If another
 * process was faster, its key is the key.
 */
static int create_key(int folder_fd, const char *folder)
{
	char name[] = "new-0123456789abcdef";
	uint64_t random;
	pier_auto_fd fd = -1;
	int error;

	if (!pier_soft_random(&random, sizeof(random)))
		return pier_fail(EIO, "soft0: no random numbers for a key");
	snprintf(name, sizeof(name), "new-%016llx", (unsigned long long)random);
	fd = openat(folder_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return pier_fail(errno, "soft0: cannot make a key file in %s", folder);
	error = write_key(fd);
	if (!error && linkat(folder_fd, name, folder_fd, key_name, 0) < 0 &&
	    errno != EEXIST)
		error = -errno;
	unlinkat(folder_fd, name, 0);
	if (error)
		return pier_fail(-error, "soft0: cannot write the key file %s/%s", folder,
				 key_name);
	return 0;
}

static int take_folder_key(const struct soft_meeting *meeting, int folder_fd,
			   uint8_t *ret_key)
{
	char prefix[SOFT_FOLDER_SIZE + 1];
	int error;

	snprintf(prefix, sizeof(prefix), "%s/", meeting->folder);
	error = read_key(folder_fd, prefix, key_name, O_NOFOLLOW, ret_key);
	if (error != -ENOENT)
		return error;
	error = create_key(folder_fd, meeting->folder);
	if (!error)
		error = read_key(folder_fd, prefix, key_name, O_NOFOLLOW, ret_key);
	if (error == -ENOENT)
		return pier_fail(ENOENT, "soft0: the key file in %s vanished",
				 meeting->folder);
	return error;
}

int pier_soft_join_meeting(struct soft_meeting *meeting, bool uses_folder)
{
	const char *file = secure_getenv("PIER_SOFT_KEY");
	pier_auto_fd folder_fd = -1;
	int error = 0;

	if (file && !*file)
		file = NULL;
	if (uses_folder || !file) {
		error = name_folder(meeting);
		if (!error)
			error = open_folder(meeting->folder, &folder_fd);
	}
	if (!error && file) {
		error = read_key(AT_FDCWD, "", file, 0, meeting->key);
		if (error == -ENOENT)
			return pier_fail(ENOENT, "soft0: PIER_SOFT_KEY=%s does not exist",
					 file);
	} else if (!error) {
		error = take_folder_key(meeting, folder_fd, meeting->key);
	}
	if (!uses_folder)
		*meeting->folder = 0;
	meeting->joined = error == 0;
	return error;
}

void pier_soft_print_gid(const union ibv_gid *gid, char *ret_text)
{
	static const char digits[] = "0123456789abcdef";

	for (int i = 8; i < 16; i++) {
		*ret_text++ = digits[gid->raw[i] >> 4];
		*ret_text++ = digits[gid->raw[i] & 15];
	}
	*ret_text = 0;
}

socklen_t pier_soft_name_in_folder(const struct soft_meeting *meeting, const char *kind,
				   const union ibv_gid *gid, struct sockaddr_un *ret_name)
{
	char *end = ret_name->sun_path;

	_Static_assert(SOFT_FOLDER_SIZE + sizeof("/qp-") + 16 <=
			       sizeof(ret_name->sun_path),
		       "a socket in the folder has a name");
	memset(ret_name, 0, sizeof(*ret_name));
	ret_name->sun_family = AF_UNIX;
	end = stpcpy(stpcpy(stpcpy(stpcpy(end, meeting->folder), "/"), kind), "-");
	pier_soft_print_gid(gid, end);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) +
			   strlen(ret_name->sun_path));
}

void pier_soft_derive_secret(const struct soft_meeting *meeting, const union ibv_gid *gid,
			     uint32_t qpn, uint8_t *ret_secret)
{
	static const char label[] = "pier soft0 secret of a queue pair";
	uint8_t message[sizeof(label) + sizeof(gid->raw) + 4], mac[SOFT_MAC_SIZE];

	memcpy(message, label, sizeof(label));
	memcpy(message + sizeof(label), gid->raw, sizeof(gid->raw));
	pier_put_le32(message + sizeof(label) + sizeof(gid->raw), qpn);
	pier_soft_mac(meeting->key, SOFT_KEY_SIZE, message, sizeof(message), mac);
	memcpy(ret_secret, mac, SOFT_SECRET_SIZE);
	explicit_bzero(mac, sizeof(mac));
}

enum {
	/*
	 * A socket refuses connections for an instant between bind(2) making its file
	 * and finishing, and a key is written in another.
	 */
	AGE_SECONDS = 10
};

static bool is_old(int folder_fd, const char *name)
{
	struct stat facts;

	return fstatat(folder_fd, name, &facts, AT_SYMLINK_NOFOLLOW) == 0 &&
	       time(NULL) - facts.st_mtime >= AGE_SECONDS;
}

/* connect(2) of a datagram socket asks the kernel alone: the owner does not notice. */
static bool is_dead(const char *folder, const char *name)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	pier_auto_fd fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int length = snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", folder,
			      name);

	return fd >= 0 && length < (int)sizeof(address.sun_path) &&
	       connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 &&
	       errno == ECONNREFUSED;
}

/*
 * A context opens its socket for datagrams first and removes it last, so that one tells
 * whether the other is in use.
 */
static void sweep_file(const struct soft_meeting *meeting, int folder_fd,
		       const char *name)
{
	char other[NAME_MAX + 1];

	if (!is_old(folder_fd, name))
		return;
	if (strncmp(name, "new-", 4) == 0) {
		unlinkat(folder_fd, name, 0);
	} else if (strncmp(name, "ud-", 3) == 0 && is_dead(meeting->folder, name)) {
		pier_debug("soft0: removed the sockets of a process that died: %s", name);
		snprintf(other, sizeof(other), "qp-%s", name + 3);
		unlinkat(folder_fd, other, 0);
		unlinkat(folder_fd, name, 0);
	}
}

void pier_soft_sweep_folder(const struct soft_meeting *meeting)
{
	DIR *folder = opendir(meeting->folder);
	const struct dirent *entry;

	if (!folder)
		return;
	while ((entry = readdir(folder)))
		sweep_file(meeting, dirfd(folder), entry->d_name);
	closedir(folder);
}
