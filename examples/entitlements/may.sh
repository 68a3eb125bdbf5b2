#!/bin/sh
# May this tenant use this feature? may.sh TENANT FEATURE
# Prints yes or no. With curl alone.
set -eu

# may TENANT FEATURE: 0 for yes, 1 for no, 2 when usher cannot tell.
may() {
	# -G and --data-urlencode escape whatever is in a code.
	answer=$(curl --silent --show-error --max-time 5 --get "${ENTITLEMENTS_URL:-http://127.0.0.1:8070}/v1/check" \
		${ENTITLEMENTS_KEY:+--header "X-Usher-Key: $ENTITLEMENTS_KEY"} \
		--data-urlencode "tenant=$1" --data-urlencode "feature=$2" --write-out '%{http_code}') || return 2
	case $answer in
	*204) return 0 ;;
	*403) return 1 ;;
	# Unknown is not "no": decide yourself what a tenant may do that usher does not know.
	*) echo "usher cannot tell: $answer" >&2; return 2 ;;
	esac
}

may "${1:?usage: may.sh TENANT FEATURE}" "${2:?usage: may.sh TENANT FEATURE}" && status=0 || status=$?
case $status in 0) echo yes ;; 1) echo no ;; esac
exit "$status"
