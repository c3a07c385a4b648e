#!/bin/sh
# Stops the units before their programs go; an upgrade leaves them running, to be
# restarted one after the other.
set -e
if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
	case "$1" in
	remove | 0) systemctl --no-reload disable --now kvindexer.service kvrouter.service 'kvpublisher@*.service' || true ;;
	esac
fi
