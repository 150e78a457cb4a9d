"""System calls known to the filter, by purpose, with their numbers on each processor.

Any other call does not exist inside: ptrace, process_vm_readv, io_uring, bpf, mount, unshare, memfd_create, keyctl,
perf_event_open, System V memory and whatever later kernels add. An entry is name/x86-64/aarch64, the kernel's numbers
from `asm/unistd_64.h` and `asm-generic/unistd.h`; `-` is a call that the processor never had.
"""

from __future__ import annotations

ALWAYS = """
read/0/63 write/1/64 close/3/57 fstat/5/80 lseek/8/62 pread64/17/67 pwrite64/18/68 readv/19/65 writev/20/66
preadv/295/69 pwritev/296/70 preadv2/327/286 pwritev2/328/287 open/2/- openat/257/56 openat2/437/437 creat/85/-
stat/4/- lstat/6/- newfstatat/262/79 statx/332/291 access/21/- faccessat/269/48 faccessat2/439/439 readlink/89/-
readlinkat/267/78 getcwd/79/17 chdir/80/49 fchdir/81/50 getdents/78/- getdents64/217/61 rename/82/- renameat/264/38
renameat2/316/276 mkdir/83/- mkdirat/258/34 rmdir/84/- link/86/- linkat/265/37 unlink/87/- unlinkat/263/35
symlink/88/- symlinkat/266/36 ftruncate/77/46 fallocate/285/47 fsync/74/82 fdatasync/75/83 sync_file_range/277/84
dup/32/23 dup2/33/- dup3/292/24 pipe/22/- pipe2/293/59 umask/95/166 sendfile/40/71
copy_file_range/326/285 fadvise64/221/223 statfs/137/43 fstatfs/138/44 close_range/436/436 munmap/11/215
mprotect/10/226 mremap/25/216 madvise/28/233 brk/12/214 msync/26/227 mlock/149/228 munlock/150/229
membarrier/324/283 exit/60/93 exit_group/231/94 execve/59/221 execveat/322/281 wait4/61/260 waitid/247/95
set_tid_address/218/96 set_robust_list/273/99 rseq/334/293 futex/202/98 futex_waitv/449/449 arch_prctl/158/-
sched_yield/24/124 sched_getaffinity/204/123 sched_getparam/143/121 sched_getscheduler/145/120
sched_get_priority_max/146/125 sched_get_priority_min/147/126 getpriority/140/141 gettid/186/178 getpid/39/172
getppid/110/173 getpgid/121/155 getpgrp/111/- setpgid/109/154 getsid/124/156 setsid/112/157 getuid/102/174
geteuid/107/175 getgid/104/176 getegid/108/177 getgroups/115/158 getresuid/118/148 getresgid/120/150 capget/125/90
getrlimit/97/163 setrlimit/160/164 getrusage/98/165 times/100/153 getcpu/309/168 uname/63/160 sysinfo/99/179
getrandom/318/278 rt_sigaction/13/134 rt_sigprocmask/14/135 rt_sigreturn/15/139 rt_sigpending/127/136
rt_sigtimedwait/128/137 rt_sigsuspend/130/133 sigaltstack/131/132 pause/34/- alarm/37/- setitimer/38/103
getitimer/36/102 restart_syscall/219/128 clock_gettime/228/113 clock_getres/229/114 clock_nanosleep/230/115
nanosleep/35/101 gettimeofday/96/169 time/201/- timer_create/222/107 timer_settime/223/110 timer_gettime/224/108
timer_getoverrun/225/109 timer_delete/226/111 timerfd_create/283/85 timerfd_settime/286/86 timerfd_gettime/287/87
poll/7/- ppoll/271/73 select/23/- pselect6/270/72 epoll_create/213/- epoll_create1/291/20 epoll_ctl/233/21
epoll_wait/232/- epoll_pwait/281/22 epoll_pwait2/441/441 eventfd/284/- eventfd2/290/19 sendto/44/206 recvfrom/45/207
sendmsg/46/211 recvmsg/47/212 shutdown/48/210 getsockname/51/204 getpeername/52/205
"""
"""Calls that any program needs, and that affect only its own memory and the files that it may open."""

PROCESSES = """
fork/57/- vfork/58/- kill/62/129 tkill/200/130 tgkill/234/131 pidfd_open/434/434
"""
"""Starting and signalling processes: only where a PID namespace ends them all."""

ATTRIBUTES = """
chmod/90/- fchmod/91/52 fchmodat/268/53 fchmodat2/452/452 chown/92/- lchown/94/- fchown/93/55 fchownat/260/54
utime/132/- utimes/235/- utimensat/280/88 futimesat/261/- truncate/76/45
"""
"""Changing a file by its path or its mode, which Landlock does not check: only where the mounts are read-only."""

EXTENDED = """
getxattr/191/8 lgetxattr/192/9 fgetxattr/193/10 setxattr/188/5 lsetxattr/189/6 fsetxattr/190/7 listxattr/194/11
llistxattr/195/12 flistxattr/196/13 removexattr/197/14 lremovexattr/198/15 fremovexattr/199/16
"""
"""Extended attributes, which programs look for and do well without."""

LOCKS = """
flock/73/32
"""
"""Granted, and nothing is locked: a lock on a file that all calls may read would be a channel between them."""

NETWORK = """
socket/41/198 connect/42/203 bind/49/200 listen/50/201 accept/43/202 accept4/288/242
"""
"""The network: there is none."""

SOCKET_OPTIONS = """
setsockopt/54/208 getsockopt/55/209
"""
"""Options of sockets: for a program with a network of its own."""

BY_ARGUMENT = """
clone/56/220 clone3/435/435 socketpair/53/199 mmap/9/222 ioctl/16/29 fcntl/72/25 prctl/157/167 prlimit64/302/261
"""
"""Decided by their arguments."""

_COLUMN = {"x86_64": 1, "aarch64": 2}


def numbers(group: str, machine: str) -> dict[str, int]:
    """The numbers of a group's calls by their names, on a processor that `os.uname().machine` calls so."""
    rows = [entry.split("/") for entry in group.split()]
    column = _COLUMN[machine]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}
