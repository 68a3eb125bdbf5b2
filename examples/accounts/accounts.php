<?php
// The accounts whose name contains FILTER: php accounts.php [FILTER]
// No extension needed. It needs no token: usher adds it.
declare(strict_types=1);

function graphql(string $query, array $variables): array
{
    $url = getenv('USHER_URL') ?: 'http://127.0.0.1:8080/graphql';
    $body = @file_get_contents($url, false, stream_context_create(['http' => [
        'method' => 'POST',
        'header' => 'Content-Type: application/json',
        'content' => json_encode(['query' => $query, 'variables' => $variables], JSON_THROW_ON_ERROR),
        'timeout' => 60,
        'ignore_errors' => true, // the answer to a failed call says why
    ]]));
    if ($body === false) {
        throw new RuntimeException("$url can't be reached; is usher running?");
    }
    $status = $http_response_header[0];
    if (!str_contains($status, ' 200 ')) {
        throw new RuntimeException("$url answered $status: $body");
    }
    $answer = json_decode($body, true, 512, JSON_THROW_ON_ERROR);
    // The service rejects in two places: beside the data, and (a missing scope) inside it.
    foreach ([$answer, ...array_values($answer['data'] ?? [])] as $part) {
        if (!empty($part['errors'])) {
            throw new RuntimeException(json_encode($part['errors'], JSON_UNESCAPED_SLASHES));
        }
    }
    return $answer['data'];
}

$query = 'query($filter: String, $first: Int) { accounts(filter: $filter, first: $first) { nodes { id name } } }';
try {
    foreach (graphql($query, ['filter' => $argv[1] ?? 'acme', 'first' => 3])['accounts']['nodes'] as $account) {
        echo $account['id'], ' ', $account['name'], "\n";
    }
} catch (Exception $e) {
    fwrite(STDERR, $e->getMessage() . "\n");
    exit(1);
}
