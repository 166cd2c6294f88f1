#!/bin/bash
# Gives this machine the keyfiles of the network that lists its MAC addresses, with its own names of interfaces.
#
# A network is a directory: keyfiles, and mac_interface.ini with a line MAC=NAME for each interface, where NAME is
# the one in the keyfiles. PATH_PREFIX stands for / in tests.

root=${PATH_PREFIX-}
networks=$root/etc/assisted/network
interfaces=$root/sys/class/net
connections=$root/etc/NetworkManager/system-connections
if [[ -e $root/etc/initrd-release ]]; then
    connections=$root/etc/coreos-firstboot-network # which CoreOS copies to the installed system
fi
longest=15 # characters of an interface's name in Linux
settled=5 longest_wait=30 # seconds

# Set `nic` to the interface with a MAC address.
find_interface() {
    local file address
    for file in "$interfaces"/*/address; do
        if read -r address <"$file" && [[ ${address^^} == "${1^^}" ]]; then
            nic=$(basename "${file%/address}")
            return
        fi
    done
    return 1
}

# Set `own` to the interfaces of a network that this machine has, by their names in it; fail if one is missing.
declare -A own
read_network() {
    local mac name is_missing=0
    own=()
    while IFS='=' read -r mac name || [[ -n $mac ]]; do
        if find_interface "$mac"; then own[$name]=$nic; else is_missing=1; fi
    done <"$1/mac_interface.ini"
    return "$is_missing"
}

# Set `name` to what this machine calls an interface, or a VLAN such as eth0.7 of one.
rename() {
    name=$1
    local parent=${1%.*} vlan=.${1##*.}
    if [[ -n $1 && -n ${own[$1]-} ]]; then
        name=${own[$1]}
    elif [[ -n $parent && $parent != "$1" && -n ${own[$parent]-} ]]; then
        name=${own[$parent]:0:longest-${#vlan}}$vlan
    fi
}

# Set `network` to the directory of this machine: of several the first all of whose interfaces are there.
# Interfaces may appear late; so wait until none has appeared for some seconds.
find_network() {
    local seen='' names quiet=0 waited=0
    while true; do
        for network in "$networks"/host*; do
            read_network "$network" && return
        done
        ((quiet >= settled || waited >= longest_wait)) && break
        sleep 1
        names=$(ls "$interfaces")
        if [[ $names == "$seen" ]]; then ((quiet += 1)); else quiet=0; fi
        seen=$names
        ((waited += 1))
    done
    for network in "$networks"/host*; do
        read_network "$network"
        ((${#own[@]})) && return
    done
    return 1
}

if ! find_network; then
    echo "no network of $networks lists a MAC address of this machine"
    exit 0
fi
echo "the network of this machine is $network"
umask 077
mkdir -p "$connections"
rm -f "$connections"/*.nmconnection # NetworkManager would activate those that it has made itself, too
for file in "$network"/*.nmconnection; do
    rename "$(basename "$file" .nmconnection)"
    target=$connections/$name.nmconnection
    while IFS= read -r line || [[ -n $line ]]; do
        if [[ $line == *=* ]]; then
            rename "${line#*=}"
            line=${line%%=*}=$name
        fi
        printf '%s\n' "$line"
    done <"$file" >"$target"
    echo "wrote $target"
done
