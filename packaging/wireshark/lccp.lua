-- Shows the messages of the Light-weight Cluster Control Protocol (docs/how-it-works/lccp.md) in Wireshark and tshark:
--   tshark -X lua_script:lccp.lua -O lccp
-- Tags are shown, not checked: that takes the farm's secret.

local PROTOCOL = 253 -- RFC 3692
local VERSION = 1
local TAG_LEN = 16
local PREFIX_LEN = 44
local HEADER_END = 158

local RECEPTORS = {
    [1] = "distributor",
    [2] = "dispatcher",
    [3] = "forwarder",
    [4] = "agent",
}

local COMMANDS = {
    [1] = "init",
    [2] = "init-ack",
    [3] = "dispatch-request",
    [4] = "dispatch-reply",
    [5] = "handoff",
    [6] = "handoff-ack",
    [7] = "forward",
    [8] = "forward-ack",
    [9] = "close",
    [10] = "error",
    [11] = "release",
    [12] = "released",
}

local ERRORS = {
    [1] = "no-server",
    [2] = "no-capacity",
    [3] = "not-restored",
    [4] = "unknown",
    [5] = "busy",
}

local lccp = Proto("lccp", "Light-weight Cluster Control Protocol")

local f = {
    magic = ProtoField.string("lccp.magic", "Magic"),
    version = ProtoField.uint8("lccp.version", "Version"),
    flags = ProtoField.uint8("lccp.flags", "Flags", base.HEX),
    ipv6 = ProtoField.bool("lccp.flags.ipv6", "IPv6", 8, nil, 0x01),
    length = ProtoField.uint16("lccp.length", "Length"),
    key = ProtoField.uint32("lccp.key", "Key"),
    incarnation = ProtoField.uint64("lccp.incarnation", "Incarnation", base.HEX),
    sequence = ProtoField.uint64("lccp.sequence", "Sequence"),
    echo_incarnation = ProtoField.uint64("lccp.echo.incarnation", "Echo incarnation", base.HEX),
    echo_sequence = ProtoField.uint64("lccp.echo.sequence", "Echo sequence"),
    receptor = ProtoField.uint32("lccp.receptor", "Receptor", base.DEC, RECEPTORS),
    command = ProtoField.uint32("lccp.command", "Command", base.DEC, COMMANDS),
    data = ProtoField.uint32("lccp.data", "Data"),
    components = ProtoField.uint32("lccp.components", "Components", base.HEX),
    distributor = ProtoField.bool("lccp.components.distributor", "Distributor", 32, nil, 0x02),
    dispatcher = ProtoField.bool("lccp.components.dispatcher", "Dispatcher", 32, nil, 0x04),
    forwarder = ProtoField.bool("lccp.components.forwarder", "Forwarder", 32, nil, 0x08),
    agent = ProtoField.bool("lccp.components.agent", "Agent", 32, nil, 0x10),
    route = ProtoField.uint32("lccp.route", "Route"),
    offset = ProtoField.uint32("lccp.offset", "Offset of the bytes"),
    missing = ProtoField.uint32("lccp.missing", "First missing byte"),
    error = ProtoField.uint32("lccp.error", "Error", base.DEC, ERRORS),
    socket = ProtoField.bytes("lccp.socket", "Socket ID"),
    client = ProtoField.ipv4("lccp.client", "Client address"),
    client6 = ProtoField.ipv6("lccp.client6", "Client address"),
    client_port = ProtoField.uint16("lccp.client_port", "Client port"),
    server = ProtoField.ipv4("lccp.server", "Server address"),
    server6 = ProtoField.ipv6("lccp.server6", "Server address"),
    server_port = ProtoField.uint16("lccp.server_port", "Server port"),
    information = ProtoField.bytes("lccp.information", "Handoff Information"),
    chosen = ProtoField.ipv6("lccp.chosen", "Chosen server"),
    chosen_port = ProtoField.uint16("lccp.chosen_port", "Chosen port"),
    snd_una = ProtoField.uint32("lccp.snd_una", "SND.UNA"),
    snd_nxt = ProtoField.uint32("lccp.snd_nxt", "SND.NXT"),
    rcv_nxt = ProtoField.uint32("lccp.rcv_nxt", "RCV.NXT"),
    timestamp = ProtoField.uint32("lccp.timestamp", "Timestamp"),
    snd_wl1 = ProtoField.uint32("lccp.snd_wl1", "SND.WL1"),
    snd_wnd = ProtoField.uint32("lccp.snd_wnd", "Send window"),
    max_window = ProtoField.uint32("lccp.max_window", "Largest send window"),
    rcv_wnd = ProtoField.uint32("lccp.rcv_wnd", "Receive window"),
    rcv_wup = ProtoField.uint32("lccp.rcv_wup", "RCV.NXT when the window was told"),
    send_len = ProtoField.uint32("lccp.send_len", "Send queue"),
    receive_len = ProtoField.uint32("lccp.receive_len", "Receive queue"),
    mss = ProtoField.uint16("lccp.mss", "Largest segment"),
    options = ProtoField.uint8("lccp.options", "Agreed on", base.HEX),
    scales = ProtoField.bool("lccp.options.scales", "Window scales", 8, nil, 0x01),
    sack = ProtoField.bool("lccp.options.sack", "Selective acknowledgments", 8, nil, 0x02),
    timestamps = ProtoField.bool("lccp.options.timestamps", "Timestamps", 8, nil, 0x04),
    snd_scale = ProtoField.uint8("lccp.snd_scale", "Client's window scale"),
    rcv_scale = ProtoField.uint8("lccp.rcv_scale", "Host's window scale"),
    host = ProtoField.string("lccp.host", "Host"),
    method = ProtoField.string("lccp.method", "Method"),
    path = ProtoField.string("lccp.path", "Path"),
    bytes = ProtoField.bytes("lccp.bytes", "Bytes of the queues"),
    tag = ProtoField.bytes("lccp.tag", "Tag"),
}
for _, field in pairs(f) do
    table.insert(lccp.fields, field)
end

local malformed = ProtoExpert.new("lccp.malformed", "Malformed", expert.group.MALFORMED, expert.severity.ERROR)
local version = ProtoExpert.new("lccp.foreign", "Another version", expert.group.PROTOCOL, expert.severity.NOTE)
lccp.experts = { malformed, version }

-- Fields of fixed lengths, one behind the other: { field, length }, or { nil, length } for what is not shown.
local function add_all(tree, range, fields)
    local at = 0
    for _, one in ipairs(fields) do
        if one[1] then
            tree:add(one[1], range(at, one[2]))
        end
        at = at + one[2]
    end
end

local function add_prefix(tree, buffer)
    add_all(tree, buffer(0, 5), { { f.magic, 4 }, { f.version, 1 } })
    local flags = tree:add(f.flags, buffer(5, 1))
    flags:add(f.ipv6, buffer(5, 1))
    add_all(tree, buffer(6, PREFIX_LEN - 6), {
        { f.length, 2 },
        { f.key, 4 },
        { f.incarnation, 8 },
        { f.sequence, 8 },
        { f.echo_incarnation, 8 },
        { f.echo_sequence, 8 },
    })
end

local function add_components(tree, data)
    local components = tree:add(f.components, data)
    for _, field in ipairs({ f.distributor, f.dispatcher, f.forwarder, f.agent }) do
        components:add(field, data)
    end
end

local function add_state(tree, range)
    add_all(tree, range, {
        { f.snd_una, 4 },
        { f.snd_nxt, 4 },
        { f.rcv_nxt, 4 },
        { f.timestamp, 4 },
        { f.snd_wl1, 4 },
        { f.snd_wnd, 4 },
        { f.max_window, 4 },
        { f.rcv_wnd, 4 },
        { f.rcv_wup, 4 },
        { f.send_len, 4 },
        { f.receive_len, 4 },
        { f.mss, 2 },
    })
    local options = tree:add(f.options, range(46, 1))
    for _, field in ipairs({ f.scales, f.sack, f.timestamps }) do
        options:add(field, range(46, 1))
    end
    add_all(tree, range(47, 2), { { f.snd_scale, 1 }, { f.rcv_scale, 1 } })
end

local function add_server(tree, range)
    add_all(tree, range, { { f.chosen, 16 }, { f.chosen_port, 2 } })
end

local function add_content(tree, data, payload)
    local lengths = data:uint()
    local fields = {
        { f.host, bit.rshift(lengths, 24) },
        { f.method, bit.band(bit.rshift(lengths, 16), 0xff) },
        { f.path, bit.band(lengths, 0xffff) },
    }
    if fields[1][2] + fields[2][2] + fields[3][2] ~= payload:len() then
        tree:add_proto_expert_info(malformed, "The lengths of host, method and path are not that of what follows")
        return
    end
    local at = 0
    for _, one in ipairs(fields) do
        if one[2] > 0 then
            tree:add(one[1], payload(at, one[2]))
        end
        at = at + one[2]
    end
end

-- What each command says: of Data, of the first 50 bytes of the Handoff Information, and of what follows the header.
local SAYS = {
    [1] = function(tree, data) add_components(tree, data) end,
    [2] = function(tree, data) add_components(tree, data) end,
    [3] = function(tree, data, _, payload)
        if payload then
            add_content(tree, data, payload)
        end
    end,
    [4] = function(tree, data, information)
        tree:add(f.route, data)
        add_server(information.tree, information.range)
    end,
    [5] = function(tree, data, information, payload)
        tree:add(f.offset, data)
        add_state(information.tree, information.range)
        if payload then
            tree:add(f.bytes, payload)
        end
    end,
    [6] = function(tree, data) tree:add(f.missing, data) end,
    [7] = function(_, _, information) add_server(information.tree, information.range) end,
    [10] = function(tree, data) tree:add(f.error, data) end,
    [11] = function(_, _, information) add_state(information.tree, information.range) end,
    [12] = function(_, _, information) add_state(information.tree, information.range) end,
}

-- The tree of the Socket ID, and for the packet list how the client is written.
local function add_socket(tree, buffer, ipv6)
    local socket = tree:add(f.socket, buffer(56, 12))
    local client, server = buffer(56, 4), buffer(62, 4)
    if ipv6 then
        client, server = buffer(118, 16), buffer(134, 16)
    end
    socket:add(ipv6 and f.client6 or f.client, client)
    socket:add(f.client_port, buffer(60, 2))
    socket:add(ipv6 and f.server6 or f.server, server)
    socket:add(f.server_port, buffer(66, 2))
    if buffer(60, 2):uint() == 0 then
        return ""
    end
    local address = ipv6 and "[" .. tostring(client:ipv6()) .. "]" or tostring(client:ipv4())
    return " " .. address .. ":" .. buffer(60, 2):uint()
end

-- The paper's header and what follows it, up to the tag.
local function add_rest(tree, buffer, told, pinfo)
    if buffer(4, 1):uint() ~= VERSION then
        tree:add_proto_expert_info(version)
        return
    end
    if told < HEADER_END + TAG_LEN then
        tree:add_proto_expert_info(malformed, "The message has no whole header")
        return
    end
    local command, data = buffer(48, 4):uint(), buffer(52, 4)
    add_all(tree, buffer(44, 12), { { f.receptor, 4 }, { f.command, 4 }, { f.data, 4 } })
    local client = add_socket(tree, buffer, bit.band(buffer(5, 1):uint(), 1) == 1)
    local information = { tree = tree:add(f.information, buffer(68, 90)), range = buffer(68, 50) }
    local payload_len = told - TAG_LEN - HEADER_END
    local payload = payload_len > 0 and buffer(HEADER_END, payload_len) or nil
    local says = SAYS[command]
    if says then
        says(tree, data, information, payload)
    end
    local receptor = RECEPTORS[buffer(44, 4):uint()] or "?"
    pinfo.cols.info = (COMMANDS[command] or "command " .. command) .. client .. " to " .. receptor
end

function lccp.dissector(buffer, pinfo, root)
    local length = buffer:len()
    if length < PREFIX_LEN + TAG_LEN or buffer(0, 4):string() ~= "LCCP" then
        return 0
    end
    pinfo.cols.protocol = "LCCP"
    local told = buffer(6, 2):uint()
    local tree = root:add(lccp, buffer(0, math.min(told, length)))
    add_prefix(tree, buffer)
    if told > length or told < PREFIX_LEN + TAG_LEN then
        tree:add_proto_expert_info(malformed, "The message is not as long as it says")
        return length
    end
    add_rest(tree, buffer, told, pinfo)
    tree:add(f.tag, buffer(told - TAG_LEN, TAG_LEN))
    return told
end

DissectorTable.get("ip.proto"):add(PROTOCOL, lccp)
