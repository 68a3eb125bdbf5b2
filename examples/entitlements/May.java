import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;

/**
 * May this tenant use this feature? java May.java TENANT FEATURE
 *
 * Prints yes or no. Java 11 or later, nothing else.
 */
public class May {
    static final String URL = System.getenv().getOrDefault("ENTITLEMENTS_URL", "http://127.0.0.1:8070");
    static final String KEY = System.getenv("ENTITLEMENTS_KEY");
    static final HttpClient CLIENT = HttpClient.newBuilder()
        .version(HttpClient.Version.HTTP_1_1).connectTimeout(Duration.ofSeconds(5)).build();

    /**
     * Throws an IOException when usher cannot tell. Unknown is not "no": decide yourself what a
     * tenant may do that usher does not know.
     */
    static boolean may(String tenant, String feature) throws IOException, InterruptedException {
        HttpRequest.Builder call = HttpRequest.newBuilder(
            URI.create(URL + "/v1/check?tenant=" + encode(tenant) + "&feature=" + encode(feature)))
            .timeout(Duration.ofSeconds(5));
        if (KEY != null) {
            call.header("X-Usher-Key", KEY);
        }
        HttpResponse<String> response = CLIENT.send(call.build(), HttpResponse.BodyHandlers.ofString());
        switch (response.statusCode()) {
            case 204: return true;
            case 403: return false;
            default: throw new IOException("answered " + response.statusCode() + ": " + response.body());
        }
    }

    static String encode(String code) {
        return URLEncoder.encode(code, StandardCharsets.UTF_8);
    }

    public static void main(String[] args) throws InterruptedException {
        if (args.length != 2) {
            System.err.println("usage: java May.java TENANT FEATURE");
            System.exit(2);
        }
        try {
            boolean allowed = may(args[0], args[1]);
            System.out.println(allowed ? "yes" : "no");
            System.exit(allowed ? 0 : 1);
        } catch (IOException e) {
            System.err.println("usher cannot tell: " + URL + ": " + e);
            System.exit(2);
        }
    }
}
