#!/bin/sh
# The Debian packages that tests marked `system` need: installed when root, named otherwise.
set -u
missing=
need() { # command package
	command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need valgrind valgrind
need setarch util-linux
need chromium chromium
need nginx nginx
need haproxy haproxy
need systemd-analyze systemd
# Debian keeps its programs out of the path.
set -- /usr/lib/postgresql/*/bin/initdb
[ -x "$1" ] || need initdb postgresql
need prometheus prometheus
need redis-server redis-server
need redis-cli redis-tools
need redis-sentinel redis-sentinel
[ -z "$missing" ] && exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
	echo "Debian packages are missing:$missing; as root: apt-get install$missing" >&2
	exit 1
fi
echo "installing Debian packages:$missing"
export DEBIAN_FRONTEND=noninteractive
# The tests start servers themselves; none should be left running on this machine by an installation.
policy=${POLICY_RC_D:-/usr/sbin/policy-rc.d}
if [ ! -e "$policy" ]; then
	trap 'rm -f "$policy"' EXIT
	printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy"
fi
# A list that is old or absent is fetched first; without a network the second step says so.
apt-get -qq update || true
# shellcheck disable=SC2086 # a list of names
if ! apt-get -qq install --yes --no-install-recommends $missing >/dev/null; then
	echo "apt-get could not install:$missing" >&2
	exit 1
fi
