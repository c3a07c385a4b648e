# Read by the scripts that have others' Python packages judge ours: . internal/testing/python.sh
# A script names itself in $target first.

skip() {
	echo "SKIP $target: $*"
	exit 0
}

# pyenv FOLDER MODULES PACKAGES...: $python becomes that of the virtual environment in FOLDER, which is
# made, with the packages, unless it has been, with these, and can import the modules (with commas between). Before it, least=N says
# that Python 3.N is the oldest that will do (11), and base=MODULE what the Python of the system must have and lend.
pyenv() {
	venv=$1 modules=$2 python=$1/bin/python
	shift 2
	[ "$(cat "$venv/packages" 2>/dev/null)" != "$*" ] || ! "$python" -c "import $modules" 2>/dev/null || return 0
	least=${least:-11} found=
	for p in ${base:+/usr/bin/python3} python3.14 python3.13 python3.12 python3.11 python3.10 python3; do
		if "$p" -c "import sys, venv, ensurepip${base:+, $base}; sys.exit(sys.version_info < (3, $least))" 2>/dev/null; then
			found=$p
			break
		fi
	done
	[ -n "$found" ] || skip "no Python 3.$least or newer with venv${base:+ and $base (Debian: python3-venv and python3-$base)}"
	echo "making a Python environment in $venv"
	rm -rf "$venv"
	"$found" -m venv ${base:+--system-site-packages} "$venv"
	"$python" -m pip install --quiet "$@" || skip "$* cannot be installed; is the Python package index reachable?"
	echo "$*" >"$venv/packages"
}

# unpack PACKAGE RELEASE FOLDER: the Python files of a wheel, without what it depends on, unless FOLDER is there.
unpack() {
	[ ! -d "$3" ] || return 0
	tmp=$(mktemp -d)
	"$python" -m pip download --quiet --no-deps --only-binary :all: -d "$tmp" "$1==$2" || skip "$1 $2 cannot be downloaded"
	rm -rf "$3.new"
	"$python" -c 'import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
wheel.extractall(sys.argv[2], [n for n in wheel.namelist() if n.endswith(".py")])' "$tmp/$1"-*.whl "$3.new"
	mv "$3.new" "$3"
	rm -rf "$tmp"
}
