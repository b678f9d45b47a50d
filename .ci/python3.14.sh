#!/usr/bin/env bash
# Print the path of a CPython 3.14, which Debian 12 doesn't package.
#
# The first call downloads the interpreter and all its libraries, including the C library, from a
# newer Debian suite and unpacks them below the user's cache directory. Later calls reuse them.
# Nothing is installed on the system, and root isn't needed. apt verifies the suite's signature and
# each package's checksum.
set -euo pipefail

suite=forky
root=${XDG_CACHE_HOME:-$HOME/.cache}/dcron/python3.14
python=$root/usr/bin/python3.14
log=$root.log

is_usable() {
    [ -e "$root/.complete" ] && "$python" -c '
import ctypes, ensurepip, sqlite3, ssl, sys, venv
sys.exit(sys.version_info[:2] != (3, 14))' 2>/dev/null
}

# apt with a state of its own. It believes that no package is installed, so it downloads every
# dependency.
configure_apt() {
    mkdir -p "$root/apt/lists/partial" "$root/apt/archives/partial"
    touch "$root/apt/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main" \
        >"$root/apt/sources.list"
    cat >"$root/apt/apt.conf" <<END
Dir::State "$root/apt";
Dir::State::status "$root/apt/status";
Dir::Cache "$root/apt";
Dir::Etc::sourcelist "$root/apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Acquire::Languages "none";
Acquire::Retries "3";
APT::Update::Error-Mode "any";
APT::Sandbox::User "$(id -un)";
APT::Install-Recommends "false";
END
    export APT_CONFIG=$root/apt/apt.conf
}

download() {
    apt-get update &&
        apt-get install --yes --download-only python3.14-venv libpython3.14 &&
        # Without its dependencies: extension modules are compiled against the system's C library.
        (cd "$root/apt/archives" && apt-get download libpython3.14-dev)
}

unpack() {
    local package
    for package in "$root"/apt/archives/*.deb; do
        dpkg-deb --extract "$package" "$root" || return
    done
    rm -r "$root/apt"
}

# Replace Debian's executable, which would load the system's C library, by one that loads the
# libraries of $root. RPATH (not RUNPATH) also applies to the libraries that extension modules load.
link_executable() {
    local libraries=$1 loader
    loader=$(echo "$libraries"/ld-linux*.so.*)
    rm "$python"
    echo 'int Py_BytesMain(int, char **); int main(int argc, char **argv) { return Py_BytesMain(argc, argv); }' |
        cc -x c - -x none "$libraries/libpython3.14.so.1.0" -o "$python" -Wl,--allow-shlib-undefined \
            -Wl,--dynamic-linker="$loader" -Wl,--disable-new-dtags -Wl,-rpath,"$libraries"
}

# Some of Debian's files name the place where they are usually installed.
correct_paths() {
    local libraries=$1
    cp "$root/usr/include/${libraries##*/}/python3.14/pyconfig.h" "$root/usr/include/python3.14/" &&
        grep -rl /usr/share/python-wheels "$root/usr/lib/python3.14" |
        xargs -d '\n' sed -i "s|/usr/share/python-wheels|$root&|"
}

build() {
    local libraries
    rm -rf "$root"
    configure_apt && download && unpack || return
    libraries=$(dirname "$root"/usr/lib/*/libc.so.6)
    link_executable "$libraries" && correct_paths "$libraries" &&
        touch "$root/.complete" && is_usable
}

mkdir -p "$(dirname "$root")"
exec 9>"$root.lock"
flock 9 # builds that run side by side share the directory
if ! is_usable; then
    for tool in apt-get dpkg-deb cc; do
        command -v $tool >/dev/null && continue
        echo "Can't get CPython 3.14: $tool is missing. Install it, or put a python3.14 on PATH." >&2
        exit 1
    done
    echo "Getting CPython 3.14 from Debian $suite into $root." >&2
    if ! build >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "Can't get CPython 3.14 from Debian $suite. The full log is $log." >&2
        echo "Check that http://deb.debian.org is reachable, or put a python3.14 on PATH." >&2
        exit 1
    fi
fi
echo "$python"
