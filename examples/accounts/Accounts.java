import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;

/**
 * The accounts whose name contains FILTER, as JSON: java Accounts.java [FILTER]
 *
 * Java 11 or later, nothing else. It needs no token: usher puts one on the call.
 */
public class Accounts {
    static final String QUERY =
        "query($filter: String, $first: Int) { accounts(filter: $filter, first: $first) { nodes { id name } } }";

    public static void main(String[] args) throws InterruptedException {
        String url = System.getenv().getOrDefault("USHER_URL", "http://127.0.0.1:8080/graphql");
        String filter = args.length > 0 ? args[0] : "acme";
        // The JDK has no JSON of its own; your program will have a library for it.
        String body = "{\"query\":" + quote(QUERY) + ",\"variables\":{\"filter\":" + quote(filter) + ",\"first\":3}}";

        // The client offers HTTP/2 with "Upgrade: h2c"; usher stays with HTTP/1.1.
        HttpClient client = HttpClient.newBuilder().connectTimeout(Duration.ofSeconds(5)).build();
        HttpRequest call = HttpRequest.newBuilder(URI.create(url))
            .timeout(Duration.ofSeconds(60))
            .header("Content-Type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString(body))
            .build();
        try {
            HttpResponse<byte[]> response = client.send(call, HttpResponse.BodyHandlers.ofByteArray());
            if (response.statusCode() != 200) {
                fail(url + " answered " + response.statusCode() + ": " + new String(response.body(), StandardCharsets.UTF_8));
            }
            System.out.write(response.body(), 0, response.body().length); // as it came: UTF-8, whatever the console's charset
            System.out.println();
        } catch (IOException e) {
            fail(url + ": " + e + "; is usher running?");
        }
    }

    static void fail(String why) {
        System.err.println(why);
        System.exit(1);
    }

    static String quote(String s) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : s.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }
}
