#!/bin/sh
# What kvrouter adds to requests: wrk against four trivial engines, directly and
# through the router. Needs wrk. Usage: sh bench/proxy/run.sh [SECONDS]
set -eu
cd "$(dirname "$0")/../.."
seconds=${1:-3}
go build -o bin/ ./cmd/kvrouter
go build -o bin/proxy-engines ./bench/proxy
bin/proxy-engines -listen 127.0.0.1:9300 &
engines=$!
bin/kvrouter --nats none --kv-events=false --mode kv --model m --http-listen 127.0.0.1:9310 --log-level warn \
	--engines http://127.0.0.1:9300,http://127.0.0.1:9301,http://127.0.0.1:9302,http://127.0.0.1:9303 &
router=$!
trap 'kill $engines $router' EXIT
sleep 1
for form in "" stream; do
	for connections in 8 1; do
		for port in 9300 9310; do
			echo "== port $port, $connections connections, ${form:-whole}"
			wrk -t1 -c$connections -d"${seconds}s" --latency -s bench/proxy/chat.lua "http://127.0.0.1:$port/v1/chat/completions" -- $form |
				grep -E '50%|99%|Requests/sec|Non-2xx|Socket'
		done
	done
done
