<?php
// May this tenant use this feature? php may.php TENANT FEATURE
// Prints yes or no. No extension needed.
declare(strict_types=1);

// True or false; throws when usher cannot tell.
// Unknown is not "no": decide yourself what a tenant may do that usher does not know.
function may(string $tenant, string $feature): bool
{
    $url = getenv('ENTITLEMENTS_URL') ?: 'http://127.0.0.1:8070';
    $key = getenv('ENTITLEMENTS_KEY');
    $query = http_build_query(['tenant' => $tenant, 'feature' => $feature]);
    $body = @file_get_contents("$url/v1/check?$query", false, stream_context_create(['http' => [
        'header' => $key ? "X-Usher-Key: $key" : '',
        'timeout' => 5,
        'ignore_errors' => true, // a "no" is a 403
        'follow_location' => 0,
    ]]));
    if ($body === false) {
        throw new RuntimeException("$url cannot be reached");
    }
    $status = (int) explode(' ', $http_response_header[0])[1];
    return match ($status) {
        204 => true,
        403 => false,
        default => throw new RuntimeException("$url answered $status: $body"),
    };
}

if ($argc !== 3) {
    fwrite(STDERR, "usage: php may.php TENANT FEATURE\n");
    exit(2);
}
try {
    $allowed = may($argv[1], $argv[2]);
} catch (RuntimeException $e) {
    fwrite(STDERR, "usher cannot tell: {$e->getMessage()}\n");
    exit(2);
}
echo $allowed ? "yes\n" : "no\n";
exit($allowed ? 0 : 1);
