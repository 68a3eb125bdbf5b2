<?php
// A receiver of webhooks, to start your own from. It takes what usher forwards, verifies
// that it comes from usher, and stores what each tenant may use: here in one file for each
// tenant, in your application probably in a table.
//
//   WEBHOOK_SECRET=whsec_… STATE_DIR=/var/lib/tenants php -S 127.0.0.1:3000 receiver.php
//
// The secret is the one that usher has as USHER_WEBHOOK_FORWARD_SIGNING_KEY.
declare(strict_types=1);

function answer(int $status, string $message = ''): never
{
    http_response_code($status);
    header('Content-Type: text/plain');
    exit($message);
}

// Checks the headers of standardwebhooks.com: a signature over "id.timestamp.body", of
// one of several keys while they are rotated, and a time that is not long ago, so that
// an old webhook can't be sent again by a stranger. Returns that time, in seconds.
function verify(string $key, string $body): int
{
    $id = $_SERVER['HTTP_WEBHOOK_ID'] ?? '';
    $timestamp = $_SERVER['HTTP_WEBHOOK_TIMESTAMP'] ?? '';
    if (!ctype_digit($timestamp) || abs(time() - (int) $timestamp) > 300) {
        answer(401, 'webhook-timestamp is missing or too far off');
    }
    $want = 'v1,' . base64_encode(hash_hmac('sha256', "$id.$timestamp.$body", $key, true));
    foreach (explode(' ', $_SERVER['HTTP_WEBHOOK_SIGNATURE'] ?? '') as $signature) {
        if (hash_equals($want, $signature)) { // takes the same time wherever they differ
            return (int) $timestamp;
        }
    }
    answer(401, 'webhook-signature does not fit');
}

// Replaces all that was known of the tenant: a feature that the snapshot does not list is
// off. So the same snapshot twice does no harm.
function apply(string $dir, array $payload, int $sent): void
{
    $features = [];
    foreach ($payload['change']['features'] ?? [] as $feature) {
        if (isset($feature['code'])) { // null counts as absent, everywhere
            $features[$feature['code']] = $feature['quantity'] ?? null; // its limit; null: no limit
        }
    }
    $state = [
        'platform' => $payload['tenant']['platform']['code'] ?? '',
        'code' => $payload['tenant']['code'],
        'features' => (object) $features,
        'sent' => $sent,
    ];
    // Never use a code as the name of a file: somebody else chose it. And a code alone does
    // not identify a tenant: another platform may have the same one.
    $path = $dir . '/' . hash('sha256', $state['platform'] . "\0" . $state['code']) . '.json';
    // If several ushers share an inbox, one that was stopped while it was sending may send an
    // old snapshot after others have sent newer ones. Answer 503, not 2xx: if only a clock was
    // set back, usher has to send it again.
    $known = is_file($path) ? json_decode((string) file_get_contents($path), true) : null;
    if ($sent < ($known['sent'] ?? 0)) {
        answer(503, 'what is known of the tenant was sent later');
    }
    $new = tempnam($dir, 'new');
    if ($new === false
        || file_put_contents($new, json_encode($state, JSON_THROW_ON_ERROR) . "\n") === false
        || !rename($new, $path)) { // all of it, or nothing
        throw new RuntimeException("$path can't be written");
    }
}

$key = base64_decode(preg_replace('/^whsec_/', '', (string) getenv('WEBHOOK_SECRET')), true);
$dir = (string) getenv('STATE_DIR');
if ($key === false || $key === '' || $dir === '') {
    error_log('WEBHOOK_SECRET should hold whsec_ and the key in base64, STATE_DIR a folder for the tenants');
    answer(500);
}
if ($_SERVER['REQUEST_METHOD'] !== 'POST' || parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH) !== '/provisioning') {
    answer(404);
}
$body = (string) file_get_contents('php://input');
$sent = verify($key, $body); // before anything else: do nothing with what usher did not sign
try {
    $webhook = json_decode($body, true, 512, JSON_THROW_ON_ERROR);
    // A question at checkout has another type and changes nothing: 2xx allows the purchase.
    if (($webhook['type'] ?? '') === 'TenantProvisioningChange') {
        apply($dir, $webhook['payload'], $sent);
    }
} catch (Throwable $e) {
    // usher tries again later. (A 400 or 422 would say: never try this one again.)
    error_log($e->getMessage());
    answer(500, 'could not be applied');
}
answer(204); // any 2xx: I have it
