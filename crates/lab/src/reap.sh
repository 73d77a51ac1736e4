# Removes what a process made: every network namespace whose name begins with $1, the processes
# in them, and the directories under $2 whose names begin with $1.
# In shell, so that it can run after its owner is gone, however the owner ended.
inside() {
    for path in /run/netns/"$1"*; do
        [ -e "$path" ] && ip netns pids "${path##*/}"
    done 2>/dev/null
}
pids=$(inside "$1")
if [ -n "$pids" ]; then
    # politely first: a program may have pinned or leased what outlives it
    kill $pids 2>/dev/null
    sleep 0.3
    pids=$(inside "$1")
    [ -n "$pids" ] && kill -9 $pids 2>/dev/null
fi
for path in /run/netns/"$1"*; do
    [ -e "$path" ] || continue
    # what a daemon that was killed has left; first, since the number may be another's soon
    number=$(stat --format=%i "$path")
    rm -rf "/run/evener/net-$number" "/sys/fs/bpf/evener/net-$number"
    ip netns del "${path##*/}"
done
rm -rf "$2"/"$1"*
