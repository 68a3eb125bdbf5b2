# A billing service that nobody here wrote the OAuth of: Rails with Doorkeeper, which issues tokens as JWTs to API clients and
# protects /graphql with them. TestDoorkeeper runs it with puma. Its settings, from the environment: LIFETIME of a token in
# seconds; OPTION, one of Doorkeeper's that is switched on, such as revoke_previous_client_credentials_token. DATABASE_URL
# names a file for its database.
ENV["RAILS_ENV"] = "production"
ENV["RAILS_MAX_THREADS"] = "8"
require "rails"
require "action_controller/railtie"
require "active_record/railtie"
require "doorkeeper"
require "jwt"

class Tokens # as a service does that needs its own claims
  def self.generate(options)
    now = Time.now.to_i
    JWT.encode({ iat: now, exp: now + options[:expires_in], jti: SecureRandom.uuid, app: options[:application].uid }, "k3y", "HS256")
  end
end

class Service < Rails::Application
  config.eager_load = true
  config.secret_key_base = "x" * 32
  config.hosts.clear
  config.force_ssl = false
  config.log_level = :error
  config.logger = Logger.new($stderr)
end

Doorkeeper.configure do
  orm :active_record
  grant_flows %w[client_credentials]
  allow_blank_redirect_uri true
  default_scopes "standard:read"
  optional_scopes "standard:write"
  enforce_configured_scopes
  access_token_generator "::Tokens"
  access_token_expires_in ENV.fetch("LIFETIME", 7200).to_i
  send(ENV["OPTION"]) if ENV["OPTION"]
end

class GraphqlController < ActionController::API
  SEEN, LOCK = Hash.new(0), Mutex.new # how often each call arrived with a valid token
  before_action -> { doorkeeper_authorize! "standard:write" }, only: :answer

  def answer
    id = params.dig(:variables, :filter).to_s
    times = LOCK.synchronize { SEEN[id] += 1 }
    render json: { data: { __typename: "Query", accounts: [{ id: times, name: id }] } }
  end

  # What an operator of the service can do: end the tokens' life early, or revoke them all; and what the test asks of it.
  def expire
    render json: { tokens: Doorkeeper::AccessToken.where(revoked_at: nil).update_all(expires_in: 0) }
  end

  def revoke
    render json: { tokens: Doorkeeper::AccessToken.where(revoked_at: nil).update_all(revoked_at: Time.now.utc) }
  end

  def issued
    render json: { tokens: Doorkeeper::AccessToken.count }
  end

  private

  def doorkeeper_unauthorized_render_options(error:)
    { json: [{ description: [error.description] }] }
  end
end

Service.initialize!
ActiveRecord::Schema.verbose = false
ActiveRecord::Base.connection.execute("PRAGMA journal_mode=WAL")
ActiveRecord::Schema.define do
  create_table :oauth_applications do |t|
    t.string :name, :uid, :secret, null: false
    t.text :redirect_uri
    t.string :scopes, null: false, default: ""
    t.boolean :confidential, null: false, default: true
    t.timestamps null: false
  end
  add_index :oauth_applications, :uid, unique: true
  create_table :oauth_access_tokens do |t|
    t.references :resource_owner
    t.references :application, null: false
    t.text :token, null: false
    t.string :refresh_token
    t.integer :expires_in
    t.datetime :revoked_at
    t.datetime :created_at, null: false
    t.string :scopes
  end
  add_index :oauth_access_tokens, :token, unique: true
end

Service.routes.draw do
  use_doorkeeper { skip_controllers :authorizations, :applications, :authorized_applications }
  post "/graphql", to: "graphql#answer"
  post "/expire", to: "graphql#expire"
  post "/revoke", to: "graphql#revoke"
  get "/issued", to: "graphql#issued"
end
Doorkeeper::Application.create!(name: "usher", uid: "app", secret: "t0psecret", scopes: "standard:read standard:write")
run Service
