# Removes what a process made: every network namespace and control group whose name begins with $1,
# the processes in them, and the directories under $2 whose names begin with $1.
# In shell, so that it can run after its owner is gone, however the owner ended.
numbers=$(stat --format=%i /run/netns/"$1"* 2>/dev/null)
inside() {
    # one process for all of them: a farm has many namespaces, and farms come and go by the hundred
    stat --dereference --format='%i %n' /proc/[0-9]*/ns/net 2>/dev/null |
        awk -v numbers="$numbers" '
            BEGIN { count = split(numbers, list); for (i = 1; i <= count; i++) ours[list[i]] = 1 }
            $1 in ours { split($2, path, "/"); print path[3] }'
}
if [ -n "$numbers" ]; then
    pids=$(inside)
    if [ -n "$pids" ]; then
        # politely first: a program may have pinned or leased what outlives it
        kill $pids 2>/dev/null
        sleep 0.3
        pids=$(inside)
        [ -n "$pids" ] && kill -9 $pids 2>/dev/null
    fi
    for number in $numbers; do
        # what a daemon that was killed has left; first, since the number may be another's soon
        rm -rf "/run/evener/net-$number" "/sys/fs/bpf/evener/net-$number"
    done
    for path in /run/netns/"$1"*; do
        echo "netns del ${path##*/}"
    done | ip -force -batch -
fi
for group in /sys/fs/cgroup/"$1"* /sys/fs/cgroup/*/"$1"*; do
    [ -d "$group" ] || continue
    pids=$(cat "$group/cgroup.procs")
    [ -n "$pids" ] && kill -9 $pids 2>/dev/null && sleep 0.3
    rmdir "$group"
done
rm -rf "$2"/"$1"*
